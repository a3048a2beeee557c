"""Whether memory is followed finely: near a threshold only.

Attached the fine-grained programs cost a page fault a few percent, detached nothing. While detached, the loop looks at
headroom often enough: the next look may wait as long as the machine needs, at the fastest rate it can fault memory in,
to eat the headroom down to a reserve in which attaching (0.2 ms, measured) is safely done. If that is shorter than
MIN_LOOK, they stay attached.
"""

from __future__ import annotations

import os

from monitor.errors import MonitorError
from monitor.kernel.pins import TRACEPOINT, Pins, attach

#: Never look more often than this; attach instead. Ten looks a second of 50 us are 0.05 % of a CPU.
MIN_LOOK_NS = 100_000_000
MAX_LOOK_NS = 10_000_000_000
#: Kept back for a late timer and for attaching itself.
RESERVE_NS = 20_000_000
#: Detach only with this much more headroom than attaching asks for, or a node at the border flaps.
_HYSTERESIS = 2


class Arming:
    """Attached or not, and until when that is safe. Without BPF nothing is attached: armed, files are read finely."""

    def __init__(self, max_fill_rate: int, pins: Pins | None = None) -> None:
        self.rate = max_fill_rate
        # Opened now: whatever becomes of the pins, attaching must not fail when it is needed.
        self._programs = {} if pins is None else {name: pins.fd(f"prog_{name}") for name in pins.pressure}
        self._links: list[int] = []
        self.partial = pins is not None and pins.hook != TRACEPOINT  # whether the hook sees charges only
        self.armed = False
        #: Whether the whole machine is watched, which has memory that is never charged.
        self.rereads = False
        self.sweep_ns = 0  # attached is so much earlier, because until a sweep is over nothing is compared
        self.next_look_ns = 0
        self.wait_ns = 0  # from the last look to the next one

    @property
    def looks(self) -> bool:
        """Whether the loop has to look at headroom when `next_look_ns` comes."""
        return not self.armed or self.rereads

    @property
    def near(self) -> int:
        """Headroom (bytes) below which it is attached."""
        return self.rate * (MIN_LOOK_NS + RESERVE_NS + self.sweep_ns) // 1_000_000_000

    def attach(self) -> None:
        """Nothing if it is attached. Raises MonitorError."""
        if self.armed:
            return
        try:
            for name, fd in self._programs.items():
                self._links.append(attach(name, fd))
        except MonitorError:  # all or none
            self.detach()
            raise
        self.armed = True

    def detach(self) -> None:
        self.armed = False
        for link in self._links:
            os.close(link)
        self._links = []

    def decide(self, headroom: int, now_ns: int, reread_ns: int = 0) -> bool:
        """Attach or detach for this headroom (bytes to the first threshold); True if that changed.

        ``reread_ns``: when to look at what is never charged, while attached.
        """
        was = self.armed
        if headroom < self.near:
            self.attach()
        elif was and headroom > _HYSTERESIS * self.near:
            self.detach()
        if not self.armed:
            safe = (headroom * 1_000_000_000) // self.rate - RESERVE_NS - self.sweep_ns
            self.wait_ns = min(MAX_LOOK_NS, max(MIN_LOOK_NS, safe))
            self.next_look_ns = now_ns + self.wait_ns
        elif self.rereads:
            self.next_look_ns = now_ns + reread_ns
        return was != self.armed
