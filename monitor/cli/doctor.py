"""`outrace doctor`: what this kernel and these privileges allow, each "no" with its remedy, and the hook here."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from monitor.actions.ledger import HOT, noted, runs
from monitor.cli.daemons import Daemon, choose_daemon, state_dir_option
from monitor.cli.output import Columns, emit, output_option, table, table_lines
from monitor.errors import EXIT_CANNOT, EXIT_OK, MonitorError
from monitor.hold import pod_brake
from monitor.kernel import cgroupfs, charging, instances, limits, mounts, sched
from monitor.kernel.btf import VMLINUX, Btf
from monitor.kernel.charging import Offer
from monitor.kernel.offsets import defines
from monitor.kernel.pins import BPFFS
from monitor.settings.config import STATE_DIR

#: Capability numbers (linux/capability.h), and what is lost without each. The first two are needed to run at all.
CAPABILITIES = {
    "CAP_BPF": (39, "load BPF programs"),
    "CAP_PERFMON": (38, "attach them to tracepoints and read kernel memory"),
    "CAP_SYS_RESOURCE": (24, "lower oom_score_adj of itself and of pods (modes hold and enforce)"),
    "CAP_SYS_NICE": (23, "run under SCHED_FIFO: detection in time on busy CPUs"),
    "CAP_IPC_LOCK": (14, "lock its memory: no waiting for its own pages under pressure"),
    "CAP_KILL": (5, "evict pods of other users (modes hold and enforce)"),
    "CAP_SYS_PTRACE": (19, "know the program of a process: sshd, the kubelet"),
    "CAP_NET_ADMIN": (
        12,
        "hear of new processes without BPF before Linux 6.6; have a large buffer between its processes",
    ),
}
_CAP_SYS_ADMIN = 21


@dataclass(frozen=True)
class Check:
    """One finding. Without a ``required`` one the monitor cannot run, without a ``bpf`` one its BPF rungs cannot."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    required: bool = False
    bpf: bool = False


def bcc_version() -> str | None:
    """Version of the distribution's BCC bindings, None if they are not importable; does not import them (60 MB)."""
    with suppress(MonitorError):
        _bcc_folder()
        try:
            return metadata.version("bcc")
        except metadata.PackageNotFoundError:
            return "of unknown version"
    return None


def _bcc_folder() -> Path:
    apt = "apt-get install python3-bpfcc (and a venv made by /usr/bin/python3 with --system-site-packages)"
    spec = importlib.util.find_spec("bcc")
    if spec is None or not spec.origin:
        raise MonitorError("the Python module bcc is not importable", apt)
    folder = Path(spec.origin).parent
    # The package `bcc` on PyPI is about body-centred cubic lattices; the BPF one has its bindings in libbcc.py.
    if not (folder / "libbcc.py").exists():
        detail = f"{folder} is PyPI's bcc, a package about lattices that has nothing to do with BPF"
        raise MonitorError(detail, f"pip uninstall bcc; {apt}")
    return folder


def _tried(name: str, attempt: Callable[[], str], **kind: bool) -> Iterator[Check]:
    """A check that is made by trying: ``attempt`` returns the detail, or raises MonitorError with the remedy."""
    try:
        yield Check(name, True, attempt())
    except MonitorError as error:
        yield Check(name, False, error.message, error.remedy, **kind)


def _root() -> Iterator[Check]:
    uid = os.geteuid()
    yield Check("root", uid == 0, f"uid {uid}", "" if uid == 0 else "run with sudo", required=True)


def _capabilities() -> Iterator[Check]:
    for name, (bit, purpose) in CAPABILITIES.items():
        # Before Linux 5.8 CAP_SYS_ADMIN was what CAP_BPF and CAP_PERFMON are now, and it still implies them.
        bpf = name in ("CAP_BPF", "CAP_PERFMON")
        ok = sched.has(bit) or (bpf and sched.has(_CAP_SYS_ADMIN))
        remedy = "" if ok else f"add {name} (systemd: CapabilityBoundingSet=, containers: capabilities.add)"
        yield Check(name, ok, purpose if ok else f"missing: needed to {purpose}", remedy, bpf=bpf)


def _btf() -> Iterator[Check]:
    yield Check("kernel", True, f"{platform.release()} {platform.machine()}")
    try:
        btf = Btf()
    except MonitorError as error:
        yield Check("btf", False, error.message, error.remedy, bpf=True)
        return
    yield Check("btf", True, str(VMLINUX))
    try:
        arguments = btf.tracepoint_args("mark_victim")
        # Until 6.9 (6.1.176, Ubuntu 5.15.0-203) only a pid.
        known = arguments[:1] in (["task_struct*"], ["int"])
        remedy = "" if known else "this kernel changed the tracepoint's arguments: please report it with this line"
        yield Check("oom-tracepoint", known, f"oom:mark_victim({', '.join(arguments)})", remedy, bpf=True)
    except MonitorError as error:
        yield Check("oom-tracepoint", False, error.message, "run a kernel with CONFIG_TRACING=y", bpf=True)

    def offsets() -> str:  # with either cgroup version the same has to be there
        return f"{len(defines(btf, 1, 2))} offsets and numbers that the programs are compiled with"

    yield from _tried("struct-offsets", offsets, bpf=True)


def _mounts() -> Iterator[Check]:
    mounted = mounts.is_mounted()  # not required: `outrace run` mounts it itself
    detail = f"{BPFFS}" if mounted else f"not mounted at {BPFFS} (`outrace run` will try)"
    yield Check("bpffs", mounted, detail, "" if mounted else mounts.MOUNT_BPFFS)


def _pins() -> Iterator[Check]:
    found = []
    for one in instances.survey():
        whose = "an unknown state dir" if one.state_dir is None else f"state dir {one.state_dir}"
        is_gone = one.state_dir is not None and not os.path.isdir(one.state_dir)
        use = "in use" if one.in_use else "which cannot be seen from here" if is_gone else "for the next start"
        found.append(f"{one.pins} pins in {one.path} of {whose}, {use}")
    left = " (`outrace unload` removes what is not in use)" if found else ""
    yield Check("pins", True, f"{'; '.join(found)}{left}" or "none")


def _holds() -> Iterator[Check]:
    """What daemons that are dead changed stays until the next start or `outrace unload` undoes it."""
    try:
        root = cgroupfs.detect().root
    except MonitorError:
        return  # no pod is to be seen from here
    problems = list[str]()
    found = list(noted(root, problems.append))
    held = sum(one.role == HOT for one in found)
    left = [
        f"{one.path} was changed by a daemon that is dead ({one.owner})" for one in found if runs(one.owner) is False
    ]
    if left or problems:
        yield Check("holds", False, "; ".join([*left, *problems]), "outrace unload --holds")
    else:
        yield Check("holds", True, f"{held} pods are held" if held else "none")


def _bcc() -> str:
    folder = _bcc_folder()
    return f"{bcc_version()} in {folder}"


def _libbpf() -> str:
    import ctypes

    from monitor.kernel.libbpf import libbpf

    version = libbpf().libbpf_version_string
    version.restype = ctypes.c_char_p
    return f"{version().decode()} ({libbpf()._name})"


def _cgroups() -> str:
    hierarchy = cgroupfs.detect()
    return f"v{hierarchy.version} at {hierarchy.root}"


def _panic_on_oom() -> Iterator[Check]:
    """Whether a pod can be held on cgroup v2, where that needs a cap."""
    try:
        version = cgroupfs.detect().version
    except MonitorError:
        return
    value = limits.number(pod_brake.PANIC_ON_OOM)
    what = f"vm.panic_on_oom {'cannot be read' if value is None else f'is {value}'}"
    if pod_brake.panics_at_cap(version):
        detail = f"{what}: no pod is held, because an OOM kill at its cap could panic the machine"
        yield Check("panic-on-oom", False, detail, "sysctl vm.panic_on_oom=0")
    else:
        yield Check("panic-on-oom", True, what)


def _kernel_log() -> str:
    from monitor.kernel.kmsg import Kmsg

    Kmsg(cgroupfs.Hierarchy(2, Path("/"))).close()
    return "/dev/kmsg: reports OOM kills where BPF does not"


def _process_connector() -> str:
    """How new processes of pods are learnt of without BPF."""
    from monitor.actions.procfeed import ConnectorFeed

    ConnectorFeed(lambda pid: None, lambda: None).close()
    return "cn_proc: reports new processes where BPF does not"


def _lockdown() -> Iterator[Check]:
    try:
        mode = charging.lockdown()
    except OSError as error:
        yield Check("lockdown", True, f"unknown: {error.filename}: {error.strerror}")
        return
    remedy = charging.NOT_CONFIDENTIAL if mode is not None and charging.CONFIDENTIAL in mode else ""
    detail = "not built in, or securityfs is not mounted" if mode is None else mode
    yield Check("lockdown", not remedy, detail, remedy, bpf=mode is not None)


def _scheduler() -> str:
    """Tried for real: SCHED_FIFO can be refused with every capability (CONFIG_RT_GROUP_SCHED)."""
    if sched.refuses_realtime():
        remedy = "add CAP_SYS_NICE; in a cpu cgroup with CONFIG_RT_GROUP_SCHED also give it cpu.rt_runtime_us"
        raise MonitorError("SCHED_FIFO refused", remedy)
    return "SCHED_FIFO with RESET_ON_FORK allowed"


CHECKS: tuple[Callable[[], Iterator[Check]], ...] = (
    *(_root, _capabilities, _btf, _mounts, _pins, _holds),
    partial(_tried, "bcc", _bcc, bpf=True),
    partial(_tried, "libbpf", _libbpf, bpf=True),
    partial(_tried, "memory-cgroups", _cgroups, required=True),
    _panic_on_oom,
    partial(_tried, "kernel-log", _kernel_log),
    partial(_tried, "process-connector", _process_connector),
    _lockdown,
    partial(_tried, "sched_fifo", _scheduler),
)


def examine() -> list[Check]:
    return [check for group in CHECKS for check in group()]


# what follows from them


#: What programs need that are pinned already: nothing is compiled or loaded for them.
_EVEN_PINNED = ("CAP_BPF", "CAP_PERFMON", "libbpf")


def _first(failed: list[Check]) -> tuple[str, str]:
    return (f"{failed[0].name}: {failed[0].detail}", failed[0].remedy) if failed else ("", "")


def hook_plan(checks: list[Check], state_dir: Path) -> dict[str, Any]:
    """The hook ladder here: the ``rung`` that `outrace run --hooks auto` would take (None: none), and all ``rungs``."""
    # `outrace run` finds out by loading what the checks know already.
    lacking = [check for check in checks if (check.bpf or check.required) and not check.ok]
    barred = [check for check in lacking if check.required or check.name in _EVEN_PINNED]
    poll = Offer(charging.POLL, True, "usage and memory.stat, read as often as the headroom asks for")
    offers = [*charging.bpf_offers(state_dir, lacking=_first(lacking), barred=_first(barred)), poll]
    try:
        cgroupfs.detect()
    except MonitorError as error:
        remedy = "mount a cgroup hierarchy with the memory controller"
        offers = [Offer(offer.name, False, str(error), remedy) for offer in offers]
    able = not any(check.required and not check.ok for check in checks)
    taken = next((offer.name for offer in offers if offer.ok), None) if able else None
    return {"rung": taken, "rungs": [_rung(offer) for offer in offers]}


def _rung(offer: Offer) -> dict[str, Any]:
    return {"name": offer.name, "ok": offer.ok, "detail": offer.why, "remedy": "" if offer.ok else offer.remedy}


@click.command()
@state_dir_option
@output_option
def doctor(state_dir: str | None, no_daemon: bool, output: str) -> int:
    """Show what this kernel and these privileges allow, each "no" with its remedy, and the daemon that runs here.

    Hooks are those of `outrace run` with the same state directory, by default the running daemon's.

    Exit code 0 if the monitor can run here, 3 if it cannot.
    """
    daemon = None
    try:
        daemon = choose_daemon(("state_dir",), no_daemon, "")
    except MonitorError as error:
        click.echo(f"outrace: {error}", err=True)  # not root, which the checks report with its consequences
    checks = examine()
    plan = hook_plan(checks, Path(state_dir or (STATE_DIR if daemon is None else daemon.config.state_dir)))
    fields = ("name", "ok", "detail", "remedy")
    answer = {"checks": [{k: getattr(check, k) for k in fields} for check in checks], "hook_plan": plan}
    answer |= {} if daemon is None else {"daemons": [daemon.to_json()]}
    emit(output, answer, lambda: _lines(checks, plan, daemon))
    return EXIT_OK if plan["rung"] else EXIT_CANNOT


def _lines(checks: Sequence[Check], plan: Mapping[str, Any], daemon: Daemon | None) -> Iterator[str]:
    words = [("ok" if c.ok else "NO" if c.required else "no", c) for c in checks]
    yield from table_lines(["check", "", "detail"], [(c.name, word, c.detail) for word, c in words])
    yield from (f"{word} {c.name}: {c.remedy}" for word, c in words if not c.ok)
    yield ""
    columns: Columns = {
        "hooks": "name",
        "": lambda rung: "taken" if rung["name"] == plan["rung"] else "ok" if rung["ok"] else "no",
        "detail": lambda rung: rung["detail"] if rung["ok"] else f"{rung['detail']}: {rung['remedy']}",
    }
    yield from table(columns, plan["rungs"])
    yield f"hook plan: {plan['rung'] or 'none: fix what says NO'}"
    if daemon is not None:
        config, why = daemon.config, daemon.info.not_ready
        ready = f"not ready: {why}" if why else "ready"
        yield f"daemon: {daemon}, mode {config.mode}, hooks {config.rung}, {ready}"
