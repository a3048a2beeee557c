"""The life cycle of the hot process, from its start to its end, as one state."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monitor.hot.decide import Decider
    from monitor.hot.evictor import Evictor
    from monitor.sources.arming import Arming


class State(IntEnum):
    """In order: whoever is further has what those before are waiting for."""

    STARTING = 0  # the side has not sent all pods yet
    SYNCING = 1  # all pods are known; the sweep that counts them is under way
    WATCHING = 2  # decisions can be made; headroom is looked at now and then
    ARMED = 3  # the fine-grained programs are attached
    PRESSED = 4  # a memory threshold is met, grace or not
    EVICTING = 5  # a pod is being evicted
    STOPPING = 6


_NEXT = {State.STARTING: State.SYNCING, State.SYNCING: State.WATCHING}


class LifeCycle:
    """Kept up to WATCHING, then derived from what is attached, met and under way."""

    def __init__(self, arming: Arming, decider: Decider, evictor: Evictor) -> None:
        self._arming = arming
        self._decider = decider
        self._evictor = evictor
        self._stage = State.STARTING  # or SYNCING or WATCHING
        #: Set by the handler of a signal, which may run in the midst of `advance`: a state of its own.
        self.is_stopping = False

    @property
    def state(self) -> State:
        if self.is_stopping:
            return State.STOPPING
        if self._stage is not State.WATCHING:
            return self._stage
        if self._evictor.current is not None:
            return State.EVICTING
        if self._decider.pressed:
            return State.PRESSED
        return State.ARMED if self._arming.armed else State.WATCHING

    def advance(self, to: State) -> None:
        """SYNCING after STARTING, or WATCHING after that. Raises ValueError for another."""
        if _NEXT.get(self._stage) is not to:
            raise ValueError(f"{self._stage.name} is not followed by {to.name}")
        self._stage = to

    def stop(self) -> None:
        """The end begins, in any state. May be called by the handler of a signal."""
        self.is_stopping = True

    @property
    def knows_pods(self) -> bool:
        """Whether the side has sent all pods once."""
        return self._stage >= State.SYNCING

    @property
    def is_ready(self) -> bool:
        """Whether decisions can be made, or could before the end began."""
        return self._stage >= State.WATCHING
