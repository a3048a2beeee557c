"""What the owner of a pod does after its eviction, and what deleting the pod then changes; as of Kubernetes 1.36."""

from __future__ import annotations

from monitor.evicted.pods import BARE, STATIC

_REPLACED = "was replaced at once; the Evicted pod stays until somebody or the pod garbage collector deletes it"
#: By owner kind. Sources: pkg/controller/*, and the pull requests named.
AFTER = {
    "Deployment": _REPLACED,
    "ReplicaSet": _REPLACED,
    "ReplicationController": _REPLACED,
    # kubernetes/kubernetes 46669 (1.7) has it for Failed; 120398 and 121389 (1.29) for Succeeded as well.
    "StatefulSet": (
        "the controller deletes a Failed pod itself, then makes it anew under the same name: one that stays says that "
        "the controller does not run, or waits for a pod before it in order"
    ),
    # failedPodsBackoff: 1 s to 15 min for each node.
    "DaemonSet": (
        "the controller deletes a Failed pod itself and makes another, with a back-off of up to 15 min a node: one "
        "that stays says that the controller does not run, or that its node is gone"
    ),
    "Job": (
        "counted as a failure against backoffLimit, unless podFailurePolicy ignores DisruptionTarget; kept for its "
        "logs, and deleted with its Job (ttlSecondsAfterFinished)"
    ),
    STATIC: "a static pod: its kubelet starts it again by itself",
    BARE: "gone for good: nobody makes it again, and deleting it loses the last trace of it",
}


def after(kind: str) -> str:
    """A sentence about pods of this owner kind."""
    return AFTER.get(kind, f"what {kind} does is up to its own controller")
