"""What follows from a pod alone is worked out once: every pass needs it, and a pod never changes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from monitor.policy.pods import Pod

P = ParamSpec("P")
R = TypeVar("R")


def per_pod(work_out: Callable[Concatenate[Pod, P], R]) -> Callable[Concatenate[Pod, P], R]:
    """Keeps the answers of a pure function beside each pod it was asked about, for as long as that pod is there. Its
    arguments have to be given by place.

    By identity, because comparing two pods takes longer than most answers.
    """
    known: dict[tuple[Any, ...], dict[int, Any]] = {}  # by the arguments, then by the pod's id
    pods: dict[int, weakref.ref[Pod]] = {}

    def forget(at: int) -> None:
        del pods[at]
        for answers in known.values():
            answers.pop(at, None)

    @wraps(work_out)
    def answer(pod: Pod, *args: Any) -> Any:
        at = id(pod)
        try:
            return known[args][at]
        except KeyError:
            pass
        if at not in pods:
            pods[at] = weakref.ref(pod, lambda _: forget(at))
        made = known.setdefault(args, {})[at] = cast(Any, work_out)(pod, *args)
        return made

    return cast(Callable[Concatenate[Pod, P], R], answer)
