"""What follows from a pod alone is worked out once: a pod is asked for it in every pass, and never changes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from monitor.policy.pods import Pod

F = TypeVar("F", bound=Callable[..., Any])


def per_pod(work_out: F) -> F:
    """Keeps the answers of a pure function beside each pod it was asked about, for as long as that pod is there.

    By identity, because comparing two pods takes longer than most answers. Arguments have to be given by place.
    """
    known: dict[int, dict[Any, Any]] = {}  # by the pod's id
    pods: dict[int, weakref.ref[Pod]] = {}

    @wraps(work_out)
    def answer(pod: Pod, *args: Any) -> Any:
        at = id(pod)
        try:
            return known[at][args]
        except KeyError:
            pass
        if at not in pods:
            known[at] = {}
            pods[at] = weakref.ref(pod, lambda _: (known.pop(at), pods.pop(at)))
        made = known[at][args] = work_out(pod, *args)
        return made

    return cast(F, answer)
