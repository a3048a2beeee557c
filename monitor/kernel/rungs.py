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
    """A rung as it is here. ``unseen_bytes`` can move, for ``unseen_ms``, before outrace knows, near a threshold. Of
    the machine, which is what `outrace run` watches by default.
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
    signals: int = 0,
    lacking: tuple[str, str] = ("", ""),
    barred: tuple[str, str] = ("", ""),
) -> tuple[Offer, ...]:
    """The rungs that need BPF, for `outrace run` and `outrace doctor` alike.

    Programs that ``state_dir`` has pinned are used whatever forbids to load them today; but a lockdown forbids to
    attach kprobes, too. What the kernel refused since it was booted is tried again only where it is ``wanted`` by name.
    ``signals``: what the programs compare (`monitor.kernel.loader`).
    ``lacking``: what is known to keep programs from being loaded, and the remedy; ``barred``: from being attached.
    `outrace run` finds out by doing both; `doctor` must not attach: a program of fentry is attached once.
    """
    from monitor.kernel import loader

    pinned = loader.pinned(state_dir) if state_dir else frozenset()
    refused = loader.refused(state_dir, signals) if state_dir else {}
    obstacle, remedy = charging.obstacle()
    if obstacle:
        lacking = obstacle, remedy
    seen = {MEMCG: "", FENTRY: _PARTIAL, KPROBE: _PARTIAL}
    found = []
    for offer in charging.offered(trying=not lacking[0]):
        name, against = offer.name, lacking
        ready = name in pinned and not (name == KPROBE and obstacle)
        if ready:
            against = barred
        elif not obstacle and not offer.ok:
            against = offer.why, offer.remedy
        elif not lacking[0] and name in refused and wanted != name:
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
    no_psi, psi_remedy = seen.no_psi, seen.psi_remedy
    if seen.cgroup_version != 2:
        no_psi = "memory.events and memory.pressure are of cgroup v2"
        psi_remedy = "boot with systemd.unified_cgroup_hierarchy=1"
    control = "run as root, with cgroups mounted writable" if seen.cgroup_version == 1 else "needs cgroup v1 and root"
    how = {
        PSI: "PSI triggers and memory.events wake a poll at the fastest possible growth",
        EVENTFD: "usage thresholds corrected by inactive_file, and a poll while page cache could hide growth",
        POLL: "a poll at the fastest possible growth",
    }
    offers = (
        *seen.bpf,
        Offer(PSI, not no_psi, no_psi or how[PSI], psi_remedy),
        Offer(EVENTFD, not seen.no_event_control, seen.no_event_control or how[EVENTFD], control),
        Offer(POLL, True, how[POLL]),
    )
    return tuple(_rung(seen, offer) for offer in offers)


def _rung(seen: Facts, offer: Offer) -> Rung:
    unseen_bytes, unseen_ns = promise(seen, offer.name)
    ok, remedy = offer.ok and not seen.no_cgroups, offer.remedy
    if seen.no_cgroups:
        remedy = "mount a cgroup hierarchy with the memory controller"
    why = seen.no_cgroups or offer.why
    return Rung(offer.name, ok, why, "" if ok else remedy, unseen_bytes, unseen_ns / 1e6)


def choose(offered: Sequence[Rung], wanted: str = AUTO, among: Sequence[str] = NAMES) -> Rung:
    """The rung called ``wanted``, or with ``auto`` the best of ``among`` that is offered. Raises CannotError."""
    if wanted != AUTO:
        rung = next(rung for rung in offered if rung.name == wanted)
        if not rung.ok:
            raise CannotError(f"--hooks {wanted}: {rung.detail}", rung.remedy)
        return rung
    left = [rung for rung in offered if rung.name in among]
    if not left:
        raise CannotError("no hooks are left to choose from", "see `outrace doctor`")
    found = next((rung for rung in left if rung.ok), None)
    if found is None:
        raise CannotError(f"no hooks can be used here: {left[-1].detail}", left[-1].remedy)
    return found
