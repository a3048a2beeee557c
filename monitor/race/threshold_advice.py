"""From recorded growth: the thresholds and reservations with which eviction would have won, with the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from operator import itemgetter

from monitor.race.burst import Burst
from monitor.race.codec import Record
from monitor.race.reaction import REACTIONS, Reaction, Survives, left_for_hold, survives

#: A burst and the id of its incident.
Evidence = tuple[str, Burst]


@dataclass(frozen=True, slots=True)
class Arithmetic(Record):
    """What a threshold is worked out from: in `incident`, `taken` bytes within `ms` of a crossing; `through` and
    `second_line` for a reaction that brakes (bytes); `beyond` bytes above the limit. `need` is the sum.
    """

    incident: str
    ms: int
    taken: int
    through: int
    second_line: int
    beyond: int
    need: int


@dataclass(frozen=True, slots=True)
class Advised(Record):
    """The threshold for one signal and one way of reacting. `threshold` (bytes): the smallest that wins a part of at
    least `quantile` of the episodes, over all phases; None: none below the capacity does. `present`: the part that the
    threshold in force wins (the latest episode's; None: there is none). `costs`: bytes of Allocatable that the advised
    threshold takes beyond the present one. `survives`: the growth that the present threshold survives, `then` the
    advised one. `evidence`: the incidents it is worked out from, `episodes` how many, `arithmetic` the one that counts.
    """

    signal: str
    reaction: str
    threshold: int | None
    quantile: float
    present: float | None
    present_threshold: int | None
    capacity: int
    episodes: int
    arithmetic: Arithmetic
    costs: int | None
    survives: Survives | None
    then: Survives | None
    rule: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reservation(Record):
    """What was in use outside the pods, at most: `outside` bytes, in `incident`. `reserved`: systemReserved and
    kubeReserved as they were; `short`: by how much the pods' part of the node was larger than what was left for it
    (0: it was not). With less reserved than is used, the machine runs out before kubepods reaches its limit, and no
    pod above its request has to be to blame.
    """

    outside: int
    reserved: int
    short: int
    incident: str
    evidence: tuple[str, ...]


def advise(evidence: Sequence[Evidence], quantile: float = 0.99) -> list[Advised]:
    """``evidence`` oldest first, of one machine. Only bursts of the latest capacity count: another is another node."""
    made = []
    for signal in dict.fromkeys(burst.signal for _, burst in evidence):
        mine = [(key, burst) for key, burst in evidence if burst.signal == signal]
        capacity = mine[-1][1].capacity
        mine = [(key, burst) for key, burst in mine if burst.capacity == capacity]
        made += [_advised(mine, reaction, quantile) for reaction in REACTIONS]
    return made


def needed(burst: Burst, reaction: Reaction, ms: int) -> float:
    """Bytes that had to be available at the crossing, for a reaction that takes ``ms``."""
    return burst.beyond + reaction.need(burst.taken(ms))


def _advised(mine: Sequence[Evidence], reaction: Reaction, quantile: float) -> Advised:
    last = mine[-1][1]
    needs = sorted(
        [(needed(b, reaction, ms), key, ms, b) for key, b in mine for ms in reaction.phases_ms], key=itemgetter(0)
    )
    need, key, ms, burst = needs[min(len(needs) - 1, max(0, ceil(quantile * len(needs) - 1e-9) - 1))]
    best = int(need) + 1 if int(need) + 1 < last.capacity else None  # it is met strictly below its quantity
    present = last.threshold
    won = None if present is None else round(sum(n < present for n, _, _, _ in needs) / len(needs), 4)
    taken, through = burst.taken(ms), reaction.through or 0
    second_line = 0 if reaction.through is None else round(left_for_hold(taken, through)) - through
    return Advised(
        signal=last.signal,
        reaction=reaction.name,
        threshold=best,
        quantile=quantile,
        present=won,
        present_threshold=present,
        capacity=last.capacity,
        episodes=len(mine),
        arithmetic=Arithmetic(key, ms, round(taken), through, second_line, burst.beyond, int(need)),
        costs=None if best is None else best - (present or 0),
        survives=None if present is None else survives(present, reaction, last.beyond),
        then=None if best is None else survives(best, reaction, last.beyond),
        rule=reaction.rule,
        evidence=tuple(key for key, _ in mine),
    )


def reservation(evidence: Sequence[Evidence]) -> Reservation | None:
    """What would have to be reserved, by bursts of the latest capacity; None: it is not known what is outside pods."""
    known = [(key, b) for key, b in evidence if b.outside is not None and b.reserved is not None]
    if not known:
        return None
    last = known[-1][1]
    known = [(key, b) for key, b in known if (b.capacity, b.signal) == (last.capacity, last.signal)]
    key, most = max(known, key=lambda one: one[1].outside or 0)
    outside, reserved = most.outside or 0, last.reserved or 0
    return Reservation(outside, reserved, max(0, outside - reserved), key, tuple(key for key, _ in known))
