"""What only one process can have, and a service waits for: the lock of a state directory, the address of `--listen`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from monitor.errors import InUseError
from monitor.hot.sd_notify import Service
from monitor.side.export.log import Log

T = TypeVar("T")

#: Less than `TimeoutStartSec=` of the unit by what compiling the programs takes on a very slow machine.
PATIENCE_S = 60.0
_LOOK_S = 0.5


def in_turn(
    take: Callable[[], T],
    log: Log,
    patience_s: float = PATIENCE_S,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """What ``take`` takes, when the other process has let go of it. Raises InUseError where it does not in time.

    Whoever types a command is told at once. A service that ends is started again after 1 s, for ever: after a crash
    nobody watches meanwhile, so `RestartSec=` cannot be longer, and a journal full of starts helps nobody. So it waits
    here, with one line, and starts as soon as it can.
    """
    service = Service()
    try:
        until, told = now() + patience_s, False
        while True:
            try:
                return take()
            except InUseError as error:
                if not service.is_there or now() >= until:
                    raise
                if not told:
                    log.warning("waiting for what another process has", problem=str(error), at_most_s=patience_s)
                    service.waiting(f"waiting: {error.message}")
                told = True
            sleep(_LOOK_S)
    finally:
        service.close()
