"""The hook ladder: what this machine offers to learn of memory by, best first, and what each rung can promise.

`facts` looks once, by what the kernel shows (BTF, tracefs, files, privileges), never by its version. `rungs` makes of
the facts what `outrace doctor` prints and `outrace run` chooses from; it looks at nothing, so any machine can be asked
about.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from monitor.errors import CannotError, MonitorError
from monitor.kernel import cgroupfs, charging, meminfo, pace
from monitor.kernel.charging import Offer
from monitor.kernel.pins import FENTRY, KPROBE, TRACEPOINT
from monitor.kernel.wire import PAGE

AUTO = "auto"
MEMCG = TRACEPOINT
PSI, EVENTFD, POLL = "psi", "eventfd", "poll"
BPF_RUNGS = (MEMCG, FENTRY, KPROBE)
SOFT_RUNGS = (PSI, EVENTFD, POLL)
NAMES = (*BPF_RUNGS, *SOFT_RUNGS)
#: Pages that a charge takes at once for a CPU (MEMCG_CHARGE_BATCH): what passes before a program sees it.
_BATCH = 64
#: What hooks on charges do not see (monitor/daemon/arming.py: PARTIAL_SWEEP_NS).
_PARTIAL = "; page cache that turns active is seen within a second"
_PRESSURE = Path("/proc/pressure/memory")


@dataclass(frozen=True, slots=True)
class Rung:
    """A rung as it is here. ``unseen_bytes`` can move, for ``unseen_ms``, before outrace knows, near a threshold."""

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
    no_event_control: str = ""
    cpus: int = 1
    huge_page: int = 0
    fill_rate: int = 6 << 30


def bpf_offers(trying: bool = True) -> tuple[Offer, ...]:
    """The rungs that need BPF: whether the kernel has their hooks. (Whether they load is found out by loading them.)
    ``trying`` as in `charging.offered`.
    """
    obstacle, remedy = charging.obstacle()
    offers = charging.offered(trying)
    if obstacle:
        return tuple([Offer(offer.name, False, obstacle, remedy) for offer in offers])
    seen = {MEMCG: "", FENTRY: _PARTIAL, KPROBE: _PARTIAL}
    said = [f"{offer.why}, compared in the kernel{seen[offer.name]}" if offer.ok else offer.why for offer in offers]
    return tuple([replace(offer, why=why) for offer, why in zip(offers, said, strict=True)])


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
    return Facts(
        bpf=tuple(bpf_offers() if bpf is None else bpf),
        cgroup_version=version,
        no_cgroups=no_cgroups,
        no_psi=_psi_problem(),
        no_event_control=no_control,
        cpus=os.cpu_count() or 1,
        huge_page=meminfo.huge_page(),
        fill_rate=fill_rate,
    )


def _psi_problem() -> str:
    """Why no PSI trigger can be had, found out by having one for a moment."""
    from monitor.kernel.alarms import PsiTrigger

    try:
        PsiTrigger(_PRESSURE).close()
    except CannotError as error:
        return error.message
    return ""


def rungs(seen: Facts) -> tuple[Rung, ...]:
    """Every rung, best first."""
    batch = seen.cpus * max(seen.huge_page, _BATCH * PAGE)
    finest_ns = pace.floor_ns(pace.TURN_NS)
    polled = pace.polled_bytes(seen.fill_rate, finest_ns, seen.cpus)
    notified = pace.notified_bytes(seen.cpus, seen.huge_page)
    found = []
    for offer in seen.bpf:
        ok = offer.ok and not seen.no_cgroups
        found.append(
            Rung(offer.name, ok, seen.no_cgroups or offer.why, "" if ok else _remedy(seen, offer.remedy), batch, 0.0)
        )
    for name, obstacle, detail, remedy, unseen in (
        (
            PSI,
            seen.no_psi or ("" if seen.cgroup_version == 2 else "memory.events and memory.pressure are of cgroup v2"),
            "PSI triggers and memory.events wake a poll at the fastest possible growth",
            "boot with psi=1" if seen.no_psi else "boot with systemd.unified_cgroup_hierarchy=1",
            polled,
        ),
        (
            EVENTFD,
            seen.no_event_control,
            "usage thresholds corrected by inactive_file, and a poll while page cache could hide growth",
            "needs cgroup v1 and root" if seen.cgroup_version != 1 else "run as root",
            notified,
        ),
        (POLL, "", "a poll at the fastest possible growth", "", polled),
    ):
        ok = not (obstacle or seen.no_cgroups)
        said = "" if ok else _remedy(seen, remedy)
        found.append(Rung(name, ok, seen.no_cgroups or obstacle or detail, said, unseen, finest_ns / 1e6))
    return tuple(found)


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
