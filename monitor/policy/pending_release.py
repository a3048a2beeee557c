"""Whether the next victim may be chosen while a release is pending: memory of the dead that is still charged. Pure.

The kernel frees page tables, slab, sockets and dying cgroups after a grace period of RCU or in a worker: 135 MiB of
page tables were all charged still when the last process was gone, and all free 19 to 25 ms later (Linux 6.18,
measured). A monitor that does not wait for that kills a pod for nothing; the faster it is, the more surely.
"""

from __future__ import annotations

from typing import NamedTuple

#: From the choice of a victim until it stops growing, at worst: 2.5 ms until it is signalled under load (p99 of
#: `outrace bench latency` beside compilers), as much until the signal is delivered.
LEAD_NS = 5_000_000
#: A pace is measured over no less than this: the kernel charges 64 pages ahead on each CPU, 1 GiB/s over 0.25 ms.
SPAN_NS = 4_000_000
#: A jump is measured over no less than this: one sample may directly follow another.
JUMP_NS = 250_000


class Coming(NamedTuple):
    """The pending release of a domain, and the growth of all else in it. Bytes and nanoseconds."""

    coming: int  # the pending release: what pods without a process held, and the kernel has not freed yet
    back_ns: int  # until it is free at the latest; 0 where that time is over
    grown: int  # growth of the rest over the last `grown_ns`
    grown_ns: int
    jump: int  # growth of the rest over the last `jump_ns`: since the sample before, or one that is `JUMP_NS` old
    jump_ns: int
    noise: int  # what the kernel may charge ahead, unused


#: No release is pending.
NOTHING = Coming(0, 0, 0, 0, 0, 0, 0)


def waits(seen: Coming, available: int, line: int) -> bool:
    """Whether to wait for the pending release, instead of choosing the next victim for a threshold that is met.

    ``available`` and ``line``: bytes available in the domain, and the threshold. The wait ends when the pending release
    would not be enough, when its time is over, or when the rest grows so fast that nothing would be available by then.
    Only measured growth counts: without growth there is no danger, however little is available.
    """
    if seen.back_ns <= 0 or available + seen.coming < line:
        return False
    if seen.jump > 0 and seen.jump * LEAD_NS >= max(0, available) * max(JUMP_NS, seen.jump_ns):
        return False  # at this pace a later kill of the next victim would not be in time
    pace = max(0, seen.grown - seen.noise)
    return pace * seen.back_ns < max(1, available) * max(SPAN_NS, seen.grown_ns)
