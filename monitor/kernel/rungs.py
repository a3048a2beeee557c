"""The hooks: what this machine offers to learn of memory by, best first, and what each can promise.

`bpf_offers` looks once, by what the kernel shows (BTF, files, privileges), never by its version.
`outrace run` chooses from the offers (`monitor.cli.hooks`), `outrace doctor` prints them.
"""

from __future__ import annotations

from pathlib import Path

from monitor.kernel import bounds, charging
from monitor.kernel.bounds import Bound
from monitor.kernel.charging import Offer
from monitor.kernel.pins import HOOKS, KPROBE, TRACEPOINT

AUTO = "auto"
POLL = "poll"
BPF_RUNGS = tuple(HOOKS)
NAMES = (*BPF_RUNGS, POLL)
#: What hooks on charges do not see (monitor/kernel/bounds.py: PARTIAL_SWEEP_NS, REREAD_NS).
_PARTIAL = "; page cache that turns active is seen within 1 s, processes of the root cgroup within 1.6 to 20 ms"


def bpf_offers(
    state_dir: Path | None = None,
    *,
    wanted: str = AUTO,
    formulas: int = 0,
    lacking: tuple[str, str] = ("", ""),
    barred: tuple[str, str] = ("", ""),
) -> tuple[Offer, ...]:
    """The rungs that need BPF, for `outrace run` and `outrace doctor` alike.

    Programs that ``state_dir`` has pinned are used whatever forbids to load them today; but a lockdown forbids to
    attach kprobes, too. What the kernel refused since it was booted, or what failed while a daemon ran, is tried again
    only where it is ``wanted`` by name.
    ``formulas``: what the programs compare (`monitor.kernel.loader`).
    ``lacking``: what is known to keep programs from being loaded, and the remedy; ``barred``: from being attached.
    `outrace run` finds out by doing both; `doctor` must not attach: a program of fentry is attached once.
    """
    from monitor.kernel import loader

    pinned = loader.pinned(state_dir) if state_dir else frozenset()
    refused = loader.refused(state_dir, formulas) if state_dir else {}
    failed = charging.failed(state_dir) if state_dir else ""
    obstacle = charging.obstacle()
    if obstacle[0]:
        lacking = obstacle
    found = []
    for offer in charging.offered(trying=not lacking[0]):
        name, against = offer.name, lacking
        ready = name in pinned and not (name == KPROBE and obstacle[0])
        if ready:
            against = barred
        elif not obstacle[0] and not offer.ok:
            against = offer.why, offer.remedy
        elif not lacking[0] and name in refused and wanted != name:
            against = refused[name], f"`outrace run --hooks {name}` tries it again"
        if failed and not against[0] and wanted != name:
            against = failed, f"a start 10 minutes later, or `outrace run --hooks {name}`, tries it again"
        found.append(Offer(name, not against[0], against[0] or _seen(name, ready), against[1]))
    return tuple(found)


def _seen(name: str, ready: bool) -> str:
    since = ", by programs that are pinned already" if ready else ""
    return f"{charging.EVENTS[name]}, compared in the kernel{since}{'' if name == TRACEPOINT else _PARTIAL}"


def promise(name: str, fill_rate: int, cpus: int, huge_page: int, *, machine: bool = True) -> Bound:
    """What a rung can promise near a threshold, as the metrics have it (`sources/gauge.py`, `hot/polled_records.py`).

    ``fill_rate``: bytes a second that can be taken at most. ``machine``: else a cgroup is the node.
    """
    if name in BPF_RUNGS:
        return bounds.compared(fill_rate, cpus, huge_page, machine=machine, charges_only=name != TRACEPOINT)
    return bounds.looked(fill_rate, cpus, bounds.floor_ns(bounds.TURN_NS), machine=machine)
