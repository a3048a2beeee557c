"""What stands between a pod and its eviction, and the decision on it: for the daemon and for `replay`.

One gate checks in this order, for a pass and for all that evicts, or arms the kernel, beside one. At a crossing
`monitor.hot.act.Actor.kill_early` asks the same questions by hand, in this order, because that is 15 us faster.

| answer | because |
|---|---|
| `NO_VICTIM` | the policy chose no pod, or not all pods are known yet |
| `BUSY` | another pod is being evicted |
| `SIGNALLED` | a signal went to another pod: by the kernel's trigger, or before the pass |
| `PRESSED` | a memory threshold is met, and the policy chooses: no eviction for a stall |
| `RETURNS` | a release is pending, and may be enough (`monitor.policy.pending_release`) |
| `SUSPENDED` | the eviction would not help, or that is not known yet (`monitor.policy.suspension`) |
| `HELD` | pods are held for the shortage (`monitor.policy.hold`) |
| `EVICT` | nothing |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monitor.policy import pending_release
from monitor.policy.eviction_pass import Outcome, PassConfig, PassResult, is_of_memory
from monitor.policy.pending_release import Coming
from monitor.policy.signals import DOMAIN_OF, RESOURCE, Observation
from monitor.policy.suspension import GO, WAIT, Answer

NO_VICTIM, BUSY, SIGNALLED, PRESSED = "no victim", "busy", "signalled", "pressed"
RETURNS, SUSPENDED, HELD, EVICT = "returns", "suspended", "held", "evict"
#: The kubelet's loop: an observed decision for a threshold that stays met is repeated as rarely as the kubelet would.
REPEAT_NS = 10_000_000_000
#: Two observed decisions are at least this far apart, so that a working set trembling at the line does not flood the
#: log.
QUIET_NS = 20_000_000


def gate(
    *,
    may_act: bool,
    busy: bool,
    signalled: bool = False,
    pressed: bool = False,
    waits: bool = False,
    forced: bool = False,
    suspends: Callable[[], Answer] = lambda: GO,
    holds: Callable[[], bool] = lambda: False,
) -> str:
    """Whether a pod is evicted now, and why not. ``may_act``: all pods are known. ``waits``: for a pending release.
    ``forced``: it has got a signal already, which cannot be suspended. ``suspends`` and ``holds`` are called only where
    the answer depends on them: figures of every pod cost 0.2 ms, and a call of ``holds`` may hold pods. While it is
    not known yet whether an eviction helps, pods may be held: that can be undone.
    """
    known = (NO_VICTIM, not may_act), (BUSY, busy), (SIGNALLED, signalled), (PRESSED, pressed), (RETURNS, waits)
    for reason, is_there in known:
        if is_there:
            return reason
    answer = suspends()
    goes = answer.go or forced
    if not goes and answer != WAIT:
        return SUSPENDED
    if holds():
        return HELD
    return EVICT if goes else SUSPENDED


def waits(
    outcome: Outcome, observations: Mapping[str, Observation], coming: Mapping[str, Coming], *, forced: bool
) -> bool:
    """Whether the victim waits for memory that is ``coming`` back, by signal. ``forced``: it was signalled already."""
    threshold = outcome.starved
    if threshold is None or outcome.victim is None or forced or not is_of_memory(outcome):
        return False
    seen = observations[threshold.signal]
    quantity = threshold.quantity(seen.capacity)
    return pending_release.waits(coming.get(threshold.signal, pending_release.NOTHING), seen.available, quantity)


def for_threshold(result: PassResult, observations: Mapping[str, Observation], suspended: str = "") -> dict[str, Any]:
    """What a `decision` says of the threshold that is acted on and its numbers (bytes, inodes, processes; seconds).
    ``suspended``: why evictions are, where growth demands this one (`monitor.policy.suspension`).
    """
    threshold = result.outcome.starved
    assert threshold is not None
    seen = observations[threshold.signal]
    return {
        "signal": threshold.signal,
        "kind": "hard" if threshold.hard else "soft",
        "domain": DOMAIN_OF.get(threshold.signal) or threshold.signal.partition(".")[0],
        "quantity": threshold.quantity(seen.capacity),
        "available": seen.available,
        "capacity": seen.capacity,
        "grace_s": result.outcome.grace_s,
        "given_s": result.grace_s,
        **({"braked": suspended} if suspended else {}),
    }


def for_limit(config: PassConfig, message: str) -> dict[str, Any]:
    """The same for a pod over a limit of its own; ``message`` says which."""
    grace_s = config.limit_grace_s
    return {"signal": None, "kind": "limit", "message": message, "grace_s": grace_s, "given_s": grace_s}


class Decisions:
    """Numbers decisions. In observe mode one and the same is not reported too often: `reported` is when it last was,
    by its subject (a resource, or the uid of a pod over a limit of its own).
    """

    def __init__(self, enforce: bool) -> None:
        self._enforce = enforce
        self.last_id = 0
        self.reported: dict[str, int] = {}

    def make(
        self,
        about: Mapping[str, Any],
        pod: tuple[str, str],
        *,
        decided_ns: int,
        crossed_ns: int = 0,
        fired: Sequence[str] | None = None,
    ) -> dict[str, Any] | None:
        """The decision to evict ``pod`` (uid, name), or that it would be evicted; None where that was reported too
        short a time ago. Has all that follows from the inputs of a pass, so it is what a recording keeps.

        ``about``: `for_threshold` or `for_limit`. ``crossed_ns``: the crossing of memory that led to it, 0: none did.
        ``fired``: the pod (uid, name) that the kernel's trigger took instead, by SIGKILL.
        """
        subject = RESOURCE[about["signal"]] if about["signal"] is not None else pod[0]
        if not self._enforce:
            # After a crossing it is due sooner.
            if decided_ns - self.reported.get(subject, 0) < (QUIET_NS if crossed_ns else REPEAT_NS):
                return None
            self.reported[subject] = decided_ns
        self.last_id += 1
        uid, name = pod if fired is None else fired
        return {
            "id": self.last_id,
            **about,
            **({} if fired is None else {"given_s": 0}),
            "pod": uid,
            "name": name,
            "observed": not self._enforce,
            "trigger": "user" if fired is None else "kernel",
            "crossed_ns": crossed_ns or None,
            "decided_ns": decided_ns,
        }

    def forget(self, now_ns: int) -> None:
        """Drop what is too old to matter, so that pods of the past take no room."""
        self.reported = {about: ns for about, ns in self.reported.items() if now_ns - ns < REPEAT_NS}
