"""Who grows, and so may have to be held (`monitor.policy.hold`). Sizes are bytes, pods are uids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from monitor.policy.eviction_brake import NOISE

#: Who took this part of what grew is held at once; who takes that part of what is left later on.
_PART, _LEFT_PART = 8, 16
#: Who takes less in the last 0.05 s stands still: a CPU charges so much ahead for a cgroup.
_STANDS = 256 << 10


def who_grew(
    grew: Mapping[str, int], everywhere: int, order: Iterable[str], lately: Mapping[str, int] | None = None
) -> list[str]:
    """Who plainly grows, in ``order``, where memory as a whole grew by ``everywhere``: an eighth of it each. Not who
    grew and stands still ``lately``, unless all do.
    """
    least = max(NOISE, everywhere // _PART)
    found = [uid for uid in order if grew.get(uid, 0) >= least]
    grow = found if lately is None else [uid for uid in found if lately.get(uid, 0) >= _STANDS]
    return grow or found


def who_grows_on(grew: Mapping[str, int], left: int, order: Iterable[str]) -> list[str]:
    """Who grows, in ``order``, although others are held: by a part of what is ``left``."""
    least = max(NOISE, left // _LEFT_PART)
    return [uid for uid in order if grew.get(uid, 0) >= least]
