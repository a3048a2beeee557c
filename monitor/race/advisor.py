"""Which threshold would have won: over many episodes, for each way of reacting to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from monitor.race.burst import Burst
from monitor.race.codec import Record

#: Who reacts -> how long from the crossing until the victim is dead, in ms, every phase alike. outrace: 0.75 ms at most
#: of 360 races and a millisecond to die, rounded up to 5. A kubelet's loop: its 10 s in every phase, then the 2.03 s
#: that its runtime takes for a pod that ignores SIGTERM; notified by the kernel (cgroup v1): 0.02-0.22 s instead.
REACTIONS: dict[str, tuple[float, ...]] = {
    "outrace": (5.0,),
    "kubelet-notified": tuple([20.0 + 200.0 * i / 20 + 2030.0 for i in range(21)]),
    "kubelet": tuple([10_000.0 * i / 40 + 2030.0 for i in range(41)]),
}


@dataclass(frozen=True, slots=True)
class Advised(Record):
    """The threshold for one signal and one way of reacting. `threshold` (bytes): the smallest that wins a part of at
    least `quantile` of the episodes, over all phases; None: none below the capacity does. `present`: the part that the
    threshold in force wins (the latest episode's; None: there is none). `episodes`: how many it is worked out from.
    """

    signal: str
    reaction: str
    threshold: int | None
    quantile: float
    present: float | None
    present_threshold: int | None
    capacity: int
    episodes: int


def advise(bursts: Sequence[Burst], quantile: float = 0.99) -> list[Advised]:
    """``bursts`` oldest first, of one machine. Only those of the latest capacity count: another one is another node."""
    made = []
    for signal in dict.fromkeys(b.signal for b in bursts):
        mine = [b for b in bursts if b.signal == signal]
        last = mine[-1]
        mine = [b for b in mine if b.capacity == last.capacity]
        for reaction, times in REACTIONS.items():
            needs = sorted([b.needed(ms) for b in mine for ms in times])
            at = min(len(needs) - 1, max(0, ceil(quantile * len(needs) - 1e-9) - 1))
            wanted = int(needs[at]) + 1  # a threshold is met strictly below its quantity
            won = None
            if last.threshold is not None:
                won = round(sum(n < last.threshold for n in needs) / len(needs), 4)
            made.append(
                Advised(
                    signal,
                    reaction,
                    wanted if wanted < last.capacity else None,
                    quantile,
                    won,
                    last.threshold,
                    last.capacity,
                    len(mine),
                )
            )
    return made
