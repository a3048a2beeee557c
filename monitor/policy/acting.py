"""How an eviction is carried out: how long the pod is asked before it is told, and whether it may be hurried.

Here outrace differs from the kubelet on purpose (docs/differences.md): a hard threshold for memory waits for nobody.
"""

from __future__ import annotations

from monitor.policy.signals import MEMORY_SIGNALS
from monitor.policy.synchronize import Outcome

#: The least grace a pod worker of the kubelet takes.
LEAST_GRACE_S = 1


def of_memory(outcome: Outcome) -> bool:
    """Whether the threshold acted on is one for memory."""
    return outcome.starved is not None and outcome.starved.signal in MEMORY_SIGNALS


def urgent(outcome: Outcome) -> bool:
    """Whether a hard threshold for memory is met: nobody gets a grace then, whichever threshold was picked to act."""
    return any(t.hard and t.signal in MEMORY_SIGNALS for t in outcome.met)


def grace_s(outcome: Outcome) -> int:
    """Seconds between SIGTERM and SIGKILL; 0: SIGKILL at once.

    A hard threshold for memory waits for nobody. All else gets a second at least, as from the kubelet's pod worker,
    which takes no smaller grace.
    """
    return 0 if of_memory(outcome) and urgent(outcome) else max(LEAST_GRACE_S, outcome.grace_s)


def takes_first_at_once(available: int, hard_line: int) -> bool:
    """Whether a pass on these numbers (bytes) is sure to evict the first pod of the order, without a grace.

    ``hard_line``: the highest hard threshold for memory of this domain, 0 without any. It is met in the first pass that
    sees it, preferred to every other signal, and waits for nobody: so a prepared victim may be signalled before that
    pass is made.
    """
    return hard_line > 0 and available < hard_line


def hurries(outcome: Outcome) -> bool:
    """Whether the pod being evicted may not go on with its grace.

    In the kubelet it may, and a hard threshold waits for it.
    """
    return outcome.victim is not None and outcome.starved is not None and (outcome.starved.hard or urgent(outcome))
