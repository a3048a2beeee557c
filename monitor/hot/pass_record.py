"""What the hot process sends for a recording: each pass of the policy with all that went into it and what came out.

Only there while `--record` is given. Sent after the pass was acted on, never waiting: what does not fit the channel is
counted, and from then on nothing is sent until a snapshot (the whole ranking and the policy's state) fits, from which
a replay can go on. `outrace replay` (monitor/cli/replay.py) is the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from monitor.hot.act import Acted, OnePass
from monitor.link.messages import HoldLook, HotMessage, Limit, OfPasses, Pass, Ranking, Snapshot
from monitor.policy.decisions import HELD, SIGNALLED, Decisions
from monitor.policy.eviction_pass import Outcome, State
from monitor.policy.hold import Look, Rules, Steps
from monitor.policy.hold import State as HoldState
from monitor.policy.ranking import Candidate
from monitor.sources.registry import row

#: Changes of the ranking in one packet: some 150 bytes each, 128 KiB are the most a packet takes.
_CHUNK = 256
#: A snapshot at least this often, so that a file that was rotated can be replayed without the one before it.
SNAPSHOT_NS = 60_000_000_000

_Before = tuple[State, dict[str, int], int]  # and what was reported, by subject; the last number of a decision


class PassRecorder:
    """Sends every pass through ``offer``, which gives False where a message did not fit. ``order``: the ranking now."""

    def __init__(self, order: Callable[[], Sequence[Candidate]], offer: Callable[[HotMessage], bool]) -> None:
        self._order = order
        self._offer = offer
        self._known: dict[int, Candidate] = {}  # as they were sent last, by identity: a change makes another
        self._number = 0  # of the next message; a reader sees by it what is missing
        self._broken = True  # something is missing: a snapshot has to come first
        self._missed = 0  # messages that did not fit
        self._snapshot_ns = 0
        self._before: _Before | None = None  # what a pass began with, where a snapshot is due
        self._disk_orders: dict[str, list[tuple[Any, ...]]] = {}

    def restart(self) -> None:
        """The helper begins a new recording, or lost a part of it."""
        self._broken = True

    def begin(self, now_ns: int, state: State, decisions: Decisions) -> None:
        """A pass begins. Only remembers: nothing may be sent before it was acted on."""
        self._disk_orders = {}
        self._before = None
        if self._broken or now_ns - self._snapshot_ns >= SNAPSHOT_NS:
            self._before = state, dict(decisions.reported), decisions.last_id

    def ranked(self, signal: str, order: Sequence[Candidate]) -> None:
        """The order for a signal of disks or process ids, as far as the policy looks: to the first not critical."""
        ends = next((i for i, candidate in enumerate(order, 1) if not candidate.critical), len(order))
        self._disk_orders[signal] = [row(candidate) for candidate in islice(order, ends)]

    def passed(self, one: OnePass, outcome: Outcome, *, may_act: bool, holding: bool) -> None:
        """A pass is over and was acted on. ``holding``: pods are held, and the policy does not decide."""
        if self._before is not None and not self._snapshot(one.now_ns, self._before):
            return
        if not self._send_changes():
            return
        acted: dict[str, Any] = dict.fromkeys(Acted._fields) if one.acted is None else one.acted._asdict()
        self._send(
            Pass(
                now_ns=one.now_ns,
                observations=one.observations,
                slow=self._disk_orders,
                may_act=may_act,
                busy=one.busy,
                held=one.answer == SIGNALLED,
                coming=one.coming,
                forced=one.forced,
                waits=one.waits,
                brake=one.asked.known,
                crossed_ns=one.crossed_ns,
                **acted,
                hurried=one.hurried,
                outcome=outcome_json(outcome),
                kept=one.answer == HELD,
                holding=holding,
            )
        )

    def held(self, rules: Rules, before: HoldState, look: Look, after: HoldState, steps: Steps) -> None:
        """Something followed from a look at the pods that are held (`monitor.policy.hold.advance`)."""
        if not self._broken:
            self._send(HoldLook(rules, before._asdict(), look._asdict(), after._asdict(), steps._asdict()))

    def over_limit(self, uid: str, name: str, message: str, acted: Acted) -> None:
        """A pod over a limit of its own was evicted, or would have been."""
        if not self._broken:
            self._send(Limit(pod=uid, name=name, message=message, **acted._asdict()))

    def _snapshot(self, now_ns: int, before: _Before) -> bool:
        """All there is to know before this pass; False if it did not fit."""
        self._broken = False
        self._snapshot_ns = now_ns
        if not self._send_changes(whole=True):
            return False
        state, told, last_id = before
        found = {**state._asdict(), "conditions": sorted(state.conditions)}
        return self._send(Snapshot(found, told, last_id, self._missed))

    def _send_changes(self, *, whole: bool = False) -> bool:
        """What changed in the ranking since it was sent last; ``whole``: all of it."""
        known, now = {} if whole else self._known, {id(one): one for one in self._order()}
        put = [row(one) for at, one in now.items() if at not in known]
        uids = {uid for uid, *_ in put}
        removed = [one.uid for at, one in known.items() if at not in now and one.uid not in uids]
        self._known = now
        while put or removed or whole:
            if not self._send(Ranking(whole, put[:_CHUNK], removed[:_CHUNK])):
                return False
            put, removed, whole = put[_CHUNK:], removed[_CHUNK:], False
        return True

    def _send(self, message: OfPasses) -> bool:
        self._number += 1
        if self._offer(message._replace(number=self._number)):
            return True
        self._missed += 1
        self._broken = True
        return False


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """What a pass decided, in the form that is compared with that of a replay."""
    starved = outcome.starved
    return {
        "starved": None if starved is None else [starved.signal, "hard" if starved.hard else "soft"],
        "victim": None if outcome.victim is None else outcome.victim.uid,
        "refused": [candidate.uid for candidate in outcome.refused],
        "grace_s": outcome.grace_s,
        "conditions": sorted(outcome.conditions),
        "met": [[t.signal, "hard" if t.hard else "soft"] for t in outcome.met],
        "observed": [[t.signal, "hard" if t.hard else "soft"] for t in outcome.observed],
        "due_ns": outcome.next_deadline_ns,
    }
