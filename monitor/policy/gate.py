"""What stands between a pass of the policy and the eviction of its victim: one gate, which checks in this order.

| answer | because |
|---|---|
| `NO_VICTIM` | the policy chose no pod, or not all pods are known yet |
| `BUSY` | another pod is being evicted |
| `RETURNS` | a release is pending, and may be enough (`monitor.policy.pending_release`) |
| `SUSPENDED` | the eviction would not help, or that is not known yet (`monitor.policy.suspension`) |
| `HELD` | pods are held for the shortage (`monitor.policy.hold`) |
| `EVICT` | nothing |

The daemon and `outrace replay` call this gate. A new reason to wait belongs here.
"""

from __future__ import annotations

from collections.abc import Callable

from monitor.policy.ranking import Candidate
from monitor.policy.suspension import WAIT, Answer
from monitor.policy.synchronize import Outcome

NO_VICTIM, BUSY, RETURNS, SUSPENDED, HELD, EVICT = "no victim", "busy", "returns", "suspended", "held", "evict"


def gate(
    outcome: Outcome,
    *,
    may_act: bool,
    busy: bool,
    waits: bool,
    forced: bool,
    suspends: Callable[[Candidate], Answer],
    holds: Callable[[Candidate], bool],
) -> str:
    """Whether the victim of a pass is evicted now, and why not.

    ``may_act``: all pods are known. ``waits``: for a pending release. ``forced``: a signal is sent already, which
    cannot be suspended. ``suspends`` and ``holds``, of the victim, are called only where the answer depends on them:
    figures of every pod cost 0.2 ms, and a call of ``holds`` may hold pods. While it is not known yet whether an
    eviction helps, pods may be held: that can be undone.
    """
    if outcome.victim is None or not may_act:
        return NO_VICTIM
    if busy:
        return BUSY
    if waits:
        return RETURNS
    answer = suspends(outcome.victim)
    goes = answer.go or forced
    if not goes and answer != WAIT:
        return SUSPENDED
    if holds(outcome.victim):
        return HELD
    return EVICT if goes else SUSPENDED
