"""Whether the next victim may be chosen while memory of the dead is still coming back. Pure: numbers in, answer out.

Page tables, slab, sockets and dying cgroups are freed after a grace period of RCU or by a worker of the kernel: 135 MiB
of page tables were all charged still when the last process was gone, and all back 19 to 25 ms later (Linux 6.18,
measured). Who does not wait for that kills somebody for nothing, and the faster the surer.
"""

from __future__ import annotations

from typing import NamedTuple

#: From choosing a victim until it takes no more, at the worst: 2.5 ms until it is signalled under load (p99 of `outrace
#: bench latency` beside compilers), as much until the signal is delivered.
LEAD_NS = 5_000_000
#: A pace is not taken from less than this: the kernel charges 64 pages ahead on each CPU, 1 GiB/s over 0.25 ms.
SPAN_NS = 4_000_000
#: Nor is a jump: two looks may come one right after the other.
JUMP_NS = 250_000


class Coming(NamedTuple):
    """What of the dead is still charged to a domain, and how the others in it grow. Bytes and nanoseconds."""

    coming: int  # of those whose last process is gone: what they held and have not given back
    back_ns: int  # until it is back at the latest; 0 where that time is over
    grown: int  # by the others, over the last `grown_ns`
    grown_ns: int
    jump: int  # by the others, over the last `jump_ns`: since the look before, or one that is `JUMP_NS` old
    jump_ns: int
    noise: int  # what the kernel may charge ahead without anybody having taken it


#: Nothing is coming.
NOTHING = Coming(0, 0, 0, 0, 0, 0, 0)


def waits(seen: Coming, available: int, line: int) -> bool:
    """Whether to wait for what is coming, instead of choosing the next victim for a threshold that is met.

    ``available`` and ``line``: what is left in the domain, and what there should be. Waiting ends when all that is
    coming would not be enough, when its time is over, or when the others grow so fast that nothing would be left by
    then. Growth is what was measured: nobody who does not grow is taken for a danger, however little is left.
    """
    if seen.back_ns <= 0 or available + seen.coming < line:
        return False
    if seen.jump > 0 and seen.jump * LEAD_NS >= max(0, available) * max(JUMP_NS, seen.jump_ns):
        return False  # at this pace the next one could not be killed in time later on
    pace = max(0, seen.grown - seen.noise)
    return pace * seen.back_ns < max(1, available) * max(SPAN_NS, seen.grown_ns)
