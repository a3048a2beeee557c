// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
// Hook "kprobe", for kernels without tracepoints on memory cgroup statistics: page_counter_try_charge(counter, nr_pages, fail) and
// page_counter_uncharge(counter, nr_pages).
//
// try_charge_memcg() calls the first only when the CPU has nothing charged ahead any more, so 4 times per MiB of 4K pages and once per huge page, and
// it walks the ancestors itself. The second is called once for each batch of pages (at most 15 or 31 folios of one cgroup) that were taken off their
// lists and freed. Without it, freed page cache would count as inactive until the next sweep, and hide working set.
//
// What changes without either is not seen here: page cache that turns active, and the processes of the root cgroup (never charged). User space
// rereads those: monitor/sources/source.py, REREAD_NS and PARTIAL_SWEEP_NS.

// The counter is `memory` of a memory cgroup, or another of its counters (memory+swap, swap, kernel memory, TCP), or of the hugetlb controller. Only
// in the first case is there a css of the memory controller where the mem_cgroup would begin: css.ss is compared with that of a css known to be
// one, the current task's. A css keeps its ss when its cgroup is removed, so charges to dying cgroups (sockets) count as well.
static __always_inline int on_counter(u32 own, u64 counter, u64 charging) {
  u64 memcg = counter - OFF_MEMCG_MEMORY, ss = 0, memory_ss = 0;
  READ(memory_ss, task_css(bpf_get_current_task()), OFF_CSS_SS);
  if (READ(ss, memcg, OFF_MEMCG_CSS + OFF_CSS_SS) || !ss || ss != memory_ss) return 0;
  struct gate *g = gates.lookup(&own);
  if (!g) return 0;
  int rising = own == OWN_CHARGE;
  if (rising) count(COUNT_EVALUATED);
  g->rising = rising;
  g->hidden = 0;
  evaluate(own, memcg, 1, g, 0, 0, 0, charging);
  return 0;
}

// On entry: a kretprobe has no arguments any more, and its instances may run out. The requested pages are added to usage here, so a charge that
// then fails at a limit is reported up to one batch early. Two CPUs that charge at once may both miss the other's batch; the next charge or the
// next reread finds it.
int on_charge(void *ctx) {
  u64 counter = 0, pages = 0;
  READ(counter, ctx, OFF_REGS_ARG0);
  READ(pages, ctx, OFF_REGS_ARG1);
  return on_counter(OWN_CHARGE, counter, pages);
}

int on_uncharge(void *ctx) {
  u64 counter = 0, pages = 0;
  READ(counter, ctx, OFF_REGS_ARG0);
  READ(pages, ctx, OFF_REGS_ARG1);
  return on_counter(OWN_UNCHARGE, counter, -pages);
}
