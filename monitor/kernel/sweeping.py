"""Making every sum of the table exact, a stretch at a time: a sweep of 17,000 memory cgroups takes 45 ms of a CPU.

The caller gives it a time budget, does its other work, and goes on with it later.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from monitor.errors import MonitorError
from monitor.kernel.pins import Map, Pins, Program

if TYPE_CHECKING:
    from monitor.kernel.domains import DomainTable

_SWEEP_MORE, _SWEEP_DONE = 0, 1
#: Runs of a program between two looks at what cannot wait: 32 memory cgroups, 0.1 ms.
_STRETCH = 16
#: Where a sweep paused, the cgroup was freed so often before its end: it is given up, and tried again later.
_ATTEMPTS = 16
#: Entries of dead cgroups are looked for after a sweep, this often; before, where there was no room for one.
_TIDY_NS = 60_000_000_000
#: Entries read at once while they are looked for: 0.2 ms.
_BATCH = 1024
_LEAF_WORDS = 3  # struct leaf
_EVER_NS = 1 << 62


class Stepwise(ABC):
    """Work in stretches that `steps` gives; see `Sweeper`."""

    number = 0  # of the sweep that runs or ran last
    has_failed = False  # the last one did not come to its end
    took_ns = 0  # CPU time of the thread, of the last complete one
    longest_turn_ns = 0  # of all turns
    _going: Iterator[bool] | None = None
    _took_ns = 0

    @abstractmethod
    def steps(self, forget: bool) -> Iterator[bool]:
        """The stretches of one sweep; each gives whether the sweep has failed."""

    @abstractmethod
    def reread(self) -> None:
        """Make usage exact in every entry of a cgroup; the file lists need a sweep."""

    @abstractmethod
    def touch(self, index: int) -> None:
        """Make an entry exact that nothing keeps so: the machine's, and without BPF that of a cgroup."""

    @property
    def runs(self) -> bool:
        """Whether a sweep has begun and is not over."""
        return self._going is not None

    def begin(self, forget: bool = False) -> None:
        """Begin a sweep, in place of one that runs. ``forget``: what was counted before it counts as unknown, and is
        compared with nothing, until it is complete.
        """
        self._going = self.steps(forget)
        self._took_ns, self.has_failed = 0, False

    def turn(self, budget_ns: int = _EVER_NS, between: Callable[[], object] | None = None) -> bool:
        """Go on for ``budget_ns``, at least by one stretch; whether the sweep came to its end, or was given up.
        ``between`` is called every `_STRETCH` stretches. (Reading the clock for each is 0.1 us of 5.)
        """
        if self._going is None:
            return True
        began, cpu = time.monotonic_ns(), time.thread_time_ns()
        going, over = self._going, True
        for n, failed in enumerate(going, 1):
            self.has_failed |= failed
            if between is not None and n % _STRETCH == 0:
                between()
                if self._going is not going:
                    return False  # begun anew in there
            if time.monotonic_ns() - began >= budget_ns:
                over = False
                break
        spent = time.thread_time_ns() - cpu
        self._took_ns += spent
        self.longest_turn_ns = max(self.longest_turn_ns, spent)
        if over:
            self._going = None
            self.took_ns = self._took_ns
        return over

    def run(self) -> int:
        """One complete sweep; its number. Raises MonitorError where cgroups vanish too fast for one."""
        self.begin()
        self.turn()
        if self.has_failed:
            raise MonitorError("memory cgroups vanish faster than they can be counted", "report this")
        return self.number


class Sweeper(Stepwise):
    """Walks every memory cgroup through BPF. 2.6 us for each, measured."""

    def __init__(self, pins: Pins, table: DomainTable) -> None:
        self._table = table
        programs = map(pins.program, ("begin", "sweep", "commit", "reread", "touch"))
        self._begin, self._sweep, self._commit, self._reread, self._touch = programs
        self._leaves: Map = pins.map("leaves", 8 * _LEAF_WORDS)
        # Never used before, also not by an earlier daemon: the programs remember which sweep counted what.
        self.number = time.monotonic_ns()
        self._tidy_ns = 0

    def steps(self, forget: bool) -> Iterator[bool]:
        self.number = number = self.number + 1
        end = self._table.high
        yield from self._over(self._begin, number, end, int(forget))
        status = self._sweep.run(number, 1, 0, 0)
        for _ in range(_ATTEMPTS):
            while status == _SWEEP_MORE:
                yield False
                status = self._sweep.run(number, 0, 0, 0)
            if status == _SWEEP_DONE:
                break
            yield False
            status = self._sweep.run(number, 1, 0, 0)  # nothing is counted twice
        else:
            yield True
            return
        yield from self._over(self._commit, number, end, 0)
        if time.monotonic_ns() >= self._tidy_ns:
            yield from self._tidy(number)
            self._tidy_ns = time.monotonic_ns() + _TIDY_NS

    @staticmethod
    def _over(program: Program, number: int, end: int, argument: int) -> Iterator[bool]:
        """Run a program over the first ``end`` entries, some at a time."""
        index = 0
        while index < end:
            index = program.run(index, number, end, argument) or end
            yield False

    def _tidy(self, number: int) -> Iterator[bool]:
        """Take out the entries of cgroups that this sweep has not been to: they are no more."""
        for keys, values in self._leaves.batches(_BATCH):
            dead = [key for key, at in zip(keys, values[_LEAF_WORDS - 1 :: _LEAF_WORDS], strict=True) if at < number]
            for key in dead:
                self._leaves.delete(key.to_bytes(8, sys.byteorder))
            yield False

    def reread(self) -> None:
        """0.15 us for each entry."""
        index, end = 0, self._table.high
        while index < end:
            index = self._reread.run(index, end, 0, 0) or end

    def touch(self, index: int) -> None:
        """5 us."""
        self._touch.run(index, 0, 0, 0)
