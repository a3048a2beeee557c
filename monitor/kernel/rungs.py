"""The hook ladder: what this machine offers to learn of memory by, best first, and what each rung can promise.

`facts` looks once, by what the kernel shows (BTF, tracefs, files, privileges), never by its version. `rungs` makes of
the facts what `outrace doctor` prints and `outrace run` chooses from; it looks at nothing, so any machine can be asked
about.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from monitor.errors import CannotError, MonitorError
from monitor.kernel import bounds, cgroupfs, charging, meminfo
from monitor.kernel.bounds import Bound
from monitor.kernel.charging import Offer
from monitor.kernel.pins import FENTRY, KPROBE, TRACEPOINT

AUTO = "auto"
MEMCG = TRACEPOINT
PSI, EVENTFD, POLL = "psi", "eventfd", "poll"
BPF_RUNGS = (MEMCG, FENTRY, KPROBE)
SOFT_RUNGS = (PSI, EVENTFD, POLL)
NAMES = (*BPF_RUNGS, *SOFT_RUNGS)
#: What hooks on charges do not see (monitor/kernel/bounds.py: PARTIAL_SWEEP_NS, REREAD_NS).
_PARTIAL = "; page cache that turns active is seen within 1 s, processes of the root cgroup within 1.6 to 20 ms"
_PRESSURE = Path("/proc/pressure/memory")


@dataclass(frozen=True, slots=True)
class Rung:
    """A rung as it is here. ``unseen_bytes`` can move, for ``unseen_ms``, before outrace knows, near a threshold.

    Of the machine, which is what `outrace run` watches by default.
    """

    name: str
    ok: bool
    detail: str
    remedy: str
    unseen_bytes: int
    unseen_ms: float


@dataclass(frozen=True, slots=True)
class Facts:
    """What decides the ladder. ``no_*``: why not, "" if it is there. Sizes in bytes, ``fill_rate`` bytes a second."""

    bpf: tuple[Offer, ...]
    cgroup_version: int
    no_cgroups: str = ""
    no_psi: str = ""
    psi_remedy: str = "boot with psi=1"
    no_event_control: str = ""
    cpus: int = 1
    huge_page: int = 0
    fill_rate: int = 6 << 30


def bpf_offers(
    state_dir: Path | None = None,
    *,
    wanted: str = AUTO,
    lacking: tuple[str, str] = ("", ""),
    barred: tuple[str, str] = ("", ""),
) -> tuple[Offer, ...]:
    """The rungs that need BPF, for `outrace run` and `outrace doctor` alike.

    Programs that ``state_dir`` has pinned are used whatever forbids to load them today; but a lockdown forbids to
    attach kprobes, too. What the kernel refused since it was booted is tried again only where it is ``wanted`` by name.
    ``lacking``: what is known to keep programs from being loaded, and the remedy; ``barred``: from being attached.
    (`outrace run` knows neither and finds out by loading and attaching. Attaching is not for those who only ask: a
    program of fentry that is attached cannot be attached again, by the daemon whose it is.)
    """
    from monitor.kernel import loader

    pinned = loader.pinned(state_dir) if state_dir else frozenset()
    refused = loader.refused(state_dir) if state_dir else {}
    obstacle, remedy = charging.obstacle()
    if obstacle:
        lacking = obstacle, remedy
    seen = {MEMCG: "", FENTRY: _PARTIAL, KPROBE: _PARTIAL}
    found = []
    for offer in charging.offered(trying=not lacking[0]):
        name, against = offer.name, ("", "")
        ready = name in pinned and not (name == KPROBE and obstacle)
        if ready:
            against = barred
        elif obstacle:
            against = lacking
        elif not offer.ok:
            against = offer.why, offer.remedy
        elif lacking[0]:
            against = lacking
        elif name in refused and wanted != name:
            against = refused[name], f"`outrace run --hooks {name}` tries it again"
        since = ", by programs that are pinned already" if ready else ""
        why = against[0] or f"{charging.EVENTS[name]}, compared in the kernel{since}{seen[name]}"
        found.append(Offer(name, not against[0], why, against[1]))
    return tuple(found)


def facts(fill_rate: int, bpf: Sequence[Offer] | None = None) -> Facts:
    """Look at this machine. ``fill_rate``: bytes a second that can be taken at most; ``bpf``: known already."""
    version, no_cgroups, no_control = 0, "", "usage thresholds are of cgroup v1"
    try:
        hierarchy = cgroupfs.detect()
        version = hierarchy.version
        if version == 1:
            control = hierarchy.root / "cgroup.event_control"
            no_control = "" if os.access(control, os.W_OK) else f"{control} cannot be written"
    except MonitorError as error:
        no_cgroups = str(error)
    no_psi, psi_remedy = _psi_problem()
    return Facts(
        bpf=tuple(bpf_offers() if bpf is None else bpf),
        cgroup_version=version,
        no_cgroups=no_cgroups,
        no_psi=no_psi,
        psi_remedy=psi_remedy,
        no_event_control=no_control,
        cpus=os.cpu_count() or 1,
        huge_page=meminfo.huge_page(),
        fill_rate=fill_rate,
    )


def _psi_problem() -> tuple[str, str]:
    """Why no PSI trigger can be had and what to do, found out by having one for a moment."""
    from monitor.kernel.alarms import PsiTrigger

    try:
        PsiTrigger(_PRESSURE).close()
    except CannotError as error:
        return error.message, error.remedy
    return "", ""


def promise(seen: Facts, name: str, *, machine: bool = True, hidden: int | None = None) -> Bound:
    """What a rung can promise near a threshold, as the metrics have it (monitor/hot: gauge.py, polled_records.py).

    ``machine``: else a cgroup is the node. ``hidden``: bytes of inactive page cache; None: so much that it hides any
    growth from the thresholds of `eventfd`.
    """
    if name in BPF_RUNGS:
        only = name != MEMCG
        return bounds.compared(seen.fill_rate, seen.cpus, seen.huge_page, machine=machine, charges_only=only)
    finest_ns = bounds.floor_ns(bounds.TURN_NS)
    if name == EVENTFD and hidden is not None:
        wait = bounds.COARSEST_NS if hidden < bounds.REAIM_BYTES else finest_ns
        return bounds.announced(seen.fill_rate, seen.cpus, seen.huge_page, wait, machine=machine, hidden=hidden)
    return bounds.looked(seen.fill_rate, seen.cpus, finest_ns, machine=machine)


def rungs(seen: Facts) -> tuple[Rung, ...]:
    """Every rung, best first."""
    found = []
    for offer in seen.bpf:
        ok = offer.ok and not seen.no_cgroups
        said = "" if ok else _remedy(seen, offer.remedy)
        found.append(_rung(seen, offer.name, ok, seen.no_cgroups or offer.why, said))
    for name, obstacle, detail, remedy in (
        (
            PSI,
            seen.no_psi if seen.cgroup_version == 2 else "memory.events and memory.pressure are of cgroup v2",
            "PSI triggers and memory.events wake a poll at the fastest possible growth",
            seen.psi_remedy if seen.cgroup_version == 2 else "boot with systemd.unified_cgroup_hierarchy=1",
        ),
        (
            EVENTFD,
            seen.no_event_control,
            "usage thresholds corrected by inactive_file, and a poll while page cache could hide growth",
            "run as root, with cgroups mounted writable" if seen.cgroup_version == 1 else "needs cgroup v1 and root",
        ),
        (POLL, "", "a poll at the fastest possible growth", ""),
    ):
        ok = not (obstacle or seen.no_cgroups)
        said = "" if ok else _remedy(seen, remedy)
        found.append(_rung(seen, name, ok, seen.no_cgroups or obstacle or detail, said))
    return tuple(found)


def _rung(seen: Facts, name: str, ok: bool, detail: str, remedy: str) -> Rung:
    unseen_bytes, unseen_ns = promise(seen, name)
    return Rung(name, ok, detail, remedy, unseen_bytes, unseen_ns / 1e6)


def _remedy(seen: Facts, remedy: str) -> str:
    return "mount a cgroup hierarchy with the memory controller" if seen.no_cgroups else remedy


def choose(offered: Sequence[Rung], wanted: str = AUTO, among: Sequence[str] = NAMES) -> Rung:
    """The rung called ``wanted``, or with ``auto`` the best of ``among`` that is offered. Raises CannotError."""
    if wanted != AUTO:
        rung = next(rung for rung in offered if rung.name == wanted)
        if not rung.ok:
            raise CannotError(f"--hooks {wanted}: {rung.detail}", rung.remedy)
        return rung
    for rung in offered:
        if rung.ok and rung.name in among:
            return rung
    refused = [rung for rung in offered if rung.name in among]
    if not refused:
        raise CannotError("no hooks are left to choose from", "see `outrace doctor`")
    raise CannotError(f"no hooks can be used here: {refused[-1].detail}", refused[-1].remedy)
