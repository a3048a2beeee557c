"""The sweep of a polled table."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.kernel.sweeping import Stepwise
from monitor.sources.polled_table import PolledTable


class PolledSweeper(Stepwise):
    """Reads every watched cgroup; takes the place of the BPF programs' sweep."""

    def __init__(self, table: PolledTable) -> None:
        self._table = table

    def steps(self, forget: bool) -> Iterator[bool]:
        self.number = number = self.number + 1
        if forget:
            for entry in self._table:
                entry.synced = 0
        for entry in list(self._table):
            if not self._table.holds(entry):
                continue  # removed since the last stretch: its descriptors may be other files by now
            self._table.read_usage(entry)
            if not entry.machine:
                self._table.read_stat(entry)
            entry.synced = number
            yield False

    def reread(self) -> None:
        """Usage of everything, but not the file lists."""
        for entry in self._table:
            self._table.read_usage(entry)

    def touch(self, index: int) -> None:
        """Bring an entry of the machine up to date."""
        self._table.read_stat(self._table.entry(index))
