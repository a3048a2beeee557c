"""The numbers the BPF programs are compiled with: struct offsets and enum values of the running kernel, from BTF.

Even between 6.1, 6.12 and 6.18 the enums differ, and configuration shifts them further; nothing here is hard-coded.
"""

from __future__ import annotations

from monitor.errors import CannotError
from monitor.kernel.btf import Btf

#: define -> (struct, member path)
_OFFSETS = {
    "OFF_MEMCG_CSS": ("mem_cgroup", "css"),
    "OFF_MEMCG_MEMORY": ("mem_cgroup", "memory"),
    "OFF_MEMCG_NODEINFO": ("mem_cgroup", "nodeinfo"),
    "OFF_COUNTER_USAGE": ("page_counter", "usage.counter"),
    "OFF_COUNTER_MAX": ("page_counter", "max"),
    "OFF_CSS_CGROUP": ("cgroup_subsys_state", "cgroup"),
    "OFF_CSS_PARENT": ("cgroup_subsys_state", "parent"),
    "OFF_CSS_SS": ("cgroup_subsys_state", "ss"),
    "OFF_CSS_CHILDREN": ("cgroup_subsys_state", "children"),
    "OFF_CSS_SIBLING": ("cgroup_subsys_state", "sibling"),
    "OFF_CGROUP_KN": ("cgroup", "kn"),
    "OFF_CGROUP_ROOT": ("cgroup", "root"),
    "OFF_CGROUP_LEVEL": ("cgroup", "level"),
    "OFF_CGROUP_SUBSYS": ("cgroup", "subsys"),
    "OFF_CGROUP_ROOT_CGRP": ("cgroup_root", "cgrp"),
    "OFF_CGROUP_ROOT_SUBSYS_MASK": ("cgroup_root", "subsys_mask"),
    "OFF_KN_ID": ("kernfs_node", "id"),
    "OFF_PER_NODE_PGDAT": ("mem_cgroup_per_node", "lruvec.pgdat"),
    "OFF_PER_NODE_LRU_ZONE_SIZE": ("mem_cgroup_per_node", "lru_zone_size"),
    "OFF_PGDAT_VM_STAT": ("pglist_data", "vm_stat"),
    "OFF_TASK_CGROUPS": ("task_struct", "cgroups"),
    "OFF_TASK_TGID": ("task_struct", "tgid"),
    "OFF_TASK_PID": ("task_struct", "pid"),
    "OFF_TASK_COMM": ("task_struct", "comm"),
    "OFF_TASK_SIGNAL": ("task_struct", "signal"),
    "OFF_TASK_MM": ("task_struct", "mm"),
    "OFF_CSS_SET_SUBSYS": ("css_set", "subsys"),
    "OFF_SIGNAL_OOM_SCORE_ADJ": ("signal_struct", "oom_score_adj"),
    "OFF_SIGNAL_LIVE": ("signal_struct", "live.counter"),
    "OFF_SIGINFO_CODE": ("kernel_siginfo", "si_code"),
    "OFF_MM_TOTAL_VM": ("mm_struct", "total_vm"),
    "OFF_MM_USERS": ("mm_struct", "mm_users.counter"),
    "OFF_MM_PGTABLES": ("mm_struct", "pgtables_bytes"),
}
#: define -> enumerator
_ENUMS = {
    **{f"NR_{name}_": f"NR_{name}" for name in ("ANON_MAPPED", "FILE_PAGES", "INACTIVE_FILE", "ACTIVE_FILE")},
    **{f"MM_{name}_": f"MM_{name}" for name in ("FILEPAGES", "ANONPAGES", "SWAPENTS", "SHMEMPAGES")},
    **{name: name for name in ("LRU_INACTIVE_FILE", "LRU_ACTIVE_FILE", "NR_LRU_LISTS")},
    "MEMORY_CGRP_ID": "memory_cgrp_id",
}
#: Of the memcg-tracepoint hook alone: MEMCG_KMEM came after 5.15.
_ITEMS = {"MEMCG_KMEM_": "MEMCG_KMEM", "MEMCG_SOCK_": "MEMCG_SOCK"}
#: The first two arguments in a kprobe's registers: x86-64 (by name), arm64 (an array).
_REGISTERS = (("di", "si"), ("regs", "regs"))
#: lruvec.lrugen.nr_pages[generation][anon, file][zone]
_ANON_AND_FILE = 2


def _generations(btf: Btf, zones: int) -> dict[str, int]:
    """The multi-gen LRU's sizes (`lru_gen_struct` in 6.1, `lru_gen_folio` since 6.2); {} without CONFIG_LRU_GEN."""
    where = "lruvec.lrugen"
    if not btf.has_member("mem_cgroup_per_node", f"{where}.nr_pages"):
        return {}
    length = btf.array_length("mem_cgroup_per_node", f"{where}.nr_pages")
    generations = length // (_ANON_AND_FILE * zones)
    # The number of a generation is its sequence modulo MAX_NR_GENS (4), which the programs take as a bit mask.
    if generations & (generations - 1) or not generations or length != generations * _ANON_AND_FILE * zones:
        raise CannotError("lruvec.lrugen.nr_pages has an unknown shape", "report this kernel's version")
    return {
        "OFF_PER_NODE_GEN_PAGES": btf.offset("mem_cgroup_per_node", f"{where}.nr_pages"),
        "OFF_PER_NODE_GEN_MAX_SEQ": btf.offset("mem_cgroup_per_node", f"{where}.max_seq"),
        "OFF_PER_NODE_GEN_ENABLED": btf.offset("mem_cgroup_per_node", f"{where}.enabled"),
        "NR_GENERATIONS": generations,
    }


def defines(btf: Btf, numa_nodes: int, cgroup_version: int) -> dict[str, int]:
    """Every ``-D`` of the programs for this kernel. Raises CannotError naming what this kernel does not have."""
    out = {name: btf.offset(*where) for name, where in _OFFSETS.items()}
    # 6.1 made it an array of pointers.
    ancestors = "ancestors" if btf.has_member("cgroup", "ancestors") else "ancestor_ids"
    out[f"OFF_CGROUP_{ancestors.upper()}"] = btf.offset("cgroup", ancestors)
    for name, member in _ENUMS.items():
        value = btf.enum(member)
        if value is None:
            remedy = "memory cgroups must be built in (CONFIG_MEMCG=y)"
            raise CannotError(f"this kernel has no {member} in its BTF", remedy)
        out[name] = value
    out |= {name: value for name, member in _ITEMS.items() if (value := btf.enum(member)) is not None}
    for first_register, second in _REGISTERS:
        if btf.has_member("pt_regs", second):
            out["OFF_REGS_ARG0"] = btf.offset("pt_regs", first_register)
            out["OFF_REGS_ARG1"] = btf.offset("pt_regs", second) + (8 if second == first_register else 0)
            break
    # On v2 the same bytes are the counter of swap alone (a union), whose limit is 0 for most pods: not a limit that
    # was hit.
    if cgroup_version == 1 and btf.has_member("mem_cgroup", "memsw.usage.counter"):
        out["OFF_MEMCG_MEMSW"] = btf.offset("mem_cgroup", "memsw")
    out["LRU_ZONE_SIZES"] = btf.array_length("mem_cgroup_per_node", "lru_zone_size")
    if out["LRU_ZONE_SIZES"] < out["NR_LRU_LISTS"] or out["LRU_ZONE_SIZES"] % out["NR_LRU_LISTS"]:  # zones x lists
        raise CannotError("mem_cgroup_per_node.lru_zone_size has an unknown shape", "report this kernel's version")
    out |= _generations(btf, out["LRU_ZONE_SIZES"] // out["NR_LRU_LISTS"])
    # 6.2 made the RSS counters percpu_counters; before, one struct of atomics.
    if btf.has_member("mm_struct", "rss_stat.count"):
        out |= {"OFF_MM_RSS_STAT": btf.offset("mm_struct", "rss_stat.count"), "RSS_STRIDE": 8}
    else:
        first = btf.offset("mm_struct", "rss_stat") + btf.offset("percpu_counter", "count")
        out |= {"OFF_MM_RSS_STAT": first, "RSS_STRIDE": btf.size("percpu_counter")}
    mark = btf.tracepoint_args("mark_victim")
    out["MARK_VICTIM_HAS_TASK"] = int(bool(mark) and "task_struct" in mark[0])
    out["NR_NODES"] = numa_nodes
    return out
