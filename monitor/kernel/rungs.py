"""The hooks: what this machine offers to learn of memory by, best first, and what each can promise.

`bpf_offers` and `facts` look once, by what the kernel shows (BTF, tracefs, files, privileges), never by its version.
`outrace run` chooses from the offers (`monitor.cli.hooks`). `rungs` makes of the facts what `outrace doctor` prints; it
looks at nothing, so any machine can be asked about.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from monitor.errors import MonitorError
from monitor.kernel import bounds, cgroupfs, charging, meminfo
from monitor.kernel.bounds import Bound
from monitor.kernel.charging import Offer
from monitor.kernel.pins import FENTRY, KPROBE, TRACEPOINT

AUTO = "auto"
MEMCG = TRACEPOINT
POLL = "poll"
BPF_RUNGS = (MEMCG, FENTRY, KPROBE)
NAMES = (*BPF_RUNGS, POLL)
#: What hooks on charges do not see (monitor/kernel/bounds.py: PARTIAL_SWEEP_NS, REREAD_NS).
_PARTIAL = "; page cache that turns active is seen within 1 s, processes of the root cgroup within 1.6 to 20 ms"


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
    no_cgroups: str = ""
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
    attach kprobes, too. What the kernel refused since it was booted, or what failed while a daemon ran, is tried again
    only where it is ``wanted`` by name.
    ``signals``: what the programs compare (`monitor.kernel.loader`).
    ``lacking``: what is known to keep programs from being loaded, and the remedy; ``barred``: from being attached.
    `outrace run` finds out by doing both; `doctor` must not attach: a program of fentry is attached once.
    """
    from monitor.kernel import loader

    pinned = loader.pinned(state_dir) if state_dir else frozenset()
    refused = loader.refused(state_dir, signals) if state_dir else {}
    failed = charging.failed(state_dir) if state_dir else ""
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
        if failed and not against[0] and wanted != name:
            against = failed, f"a start 10 minutes later, or `outrace run --hooks {name}`, tries it again"
        since = ", by programs that are pinned already" if ready else ""
        why = against[0] or f"{charging.EVENTS[name]}, compared in the kernel{since}{seen[name]}"
        found.append(Offer(name, not against[0], why, against[1]))
    return tuple(found)


def facts(fill_rate: int, bpf: Sequence[Offer] | None = None) -> Facts:
    """Look at this machine. ``fill_rate``: bytes a second that can be taken at most; ``bpf``: known already."""
    no_cgroups = ""
    try:
        cgroupfs.detect()
    except MonitorError as error:
        no_cgroups = str(error)
    return Facts(
        bpf=tuple(bpf_offers() if bpf is None else bpf),
        no_cgroups=no_cgroups,
        cpus=os.cpu_count() or 1,
        huge_page=meminfo.huge_page(),
        fill_rate=fill_rate,
    )


def promise(seen: Facts, name: str, *, machine: bool = True) -> Bound:
    """What a rung can promise near a threshold, as the metrics have it (monitor/hot: gauge.py, polled_records.py).

    ``machine``: else a cgroup is the node.
    """
    if name in BPF_RUNGS:
        only = name != MEMCG
        return bounds.compared(seen.fill_rate, seen.cpus, seen.huge_page, machine=machine, charges_only=only)
    return bounds.looked(seen.fill_rate, seen.cpus, bounds.floor_ns(bounds.TURN_NS), machine=machine)


def rungs(seen: Facts) -> tuple[Rung, ...]:
    """Every rung, best first."""
    offers = (*seen.bpf, Offer(POLL, True, "usage and memory.stat, read as often as the headroom asks for"))
    return tuple(_rung(seen, offer) for offer in offers)


def _rung(seen: Facts, offer: Offer) -> Rung:
    unseen_bytes, unseen_ns = promise(seen, offer.name)
    ok, remedy = offer.ok and not seen.no_cgroups, offer.remedy
    if seen.no_cgroups:
        remedy = "mount a cgroup hierarchy with the memory controller"
    why = seen.no_cgroups or offer.why
    return Rung(offer.name, ok, why, "" if ok else remedy, unseen_bytes, unseen_ns / 1e6)
