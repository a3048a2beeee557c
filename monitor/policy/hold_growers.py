"""Who grows, and so may have to be held (`monitor.policy.hold`). Sizes are bytes, pods are uids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from monitor.policy.eviction_brake import NOISE

#: Who took this part of what grew is held at once; who takes that part of what is left later on.
_PART, _LEFT_PART = 8, 16


def who_grew(grew: Mapping[str, int], everywhere: int, order: Iterable[str]) -> list[str]:
    """Who plainly grows, in ``order``, where memory as a whole grew by ``everywhere``: an eighth of it each."""
    least = max(NOISE, everywhere // _PART)
    return [uid for uid in order if grew.get(uid, 0) >= least]


def who_grows_on(grew: Mapping[str, int], left: int, order: Iterable[str]) -> list[str]:
    """Who grows, in ``order``, although others are held: by a part of what is ``left``."""
    least = max(NOISE, left // _LEFT_PART)
    return [uid for uid in order if grew.get(uid, 0) >= least]
