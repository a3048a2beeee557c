"""When the helper collects cycles.

A collection delays every thread of the process: by 10 to 60 ms with 10 pods (measured, 45,000 objects), and for as long
as its own thread waits for a CPU, 130 and 242 ms beside pods that start. The interpreter itself collects where most is
allocated, which is at an eviction: the status of the pod then went out 11, 28 and 81 ms after the kill instead
of 2.
"""

from __future__ import annotations

import gc
import sys

#: Of new objects, some 5 MB: so many are looked through at once, where the interpreter has 700; and how many times that
#: are looked through the next older generation, and all.
MOST, _MIDDLE, _FULL = 50_000, 10, 10
#: How soon a thread gives way to another one: at the interpreter's own 5 ms each answer of the API server that a thread
#: has waited for costs up to 5 ms beside a thread that computes.
SWITCH_S = 0.0005


def collect_rarely() -> None:
    """From now on: only beyond `MOST` new objects, and never those that exist now."""
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(MOST, _MIDDLE, _FULL)
