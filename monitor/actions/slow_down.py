"""The memory.high of a frozen pod, set by the side: before Linux 6.16 that reclaims in the writer, for up to 2.2 s.

By the time it is written the pod may be released, and whoever wrote it killed: so it is done only where the hold's note
has it (`monitor.actions.hold_journal`), which is undone after any SIGKILL, and is undone at once where that is over.
"""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

from monitor.actions.brake_file import BrakeFile
from monitor.actions.changes import Change, opened
from monitor.actions.hold_journal import HELD, HoldJournal
from monitor.actions.soft_brake import HIGH
from monitor.kernel import cgroupfs


class SlowDowns:
    """Of the pods of one daemon, by uid."""

    def __init__(self, state_dir: Path) -> None:
        self._journal = HoldJournal(state_dir)
        self._slowed: dict[str, tuple[Path, int, str]] = {}

    @property
    def uids(self) -> set[str]:
        return set(self._slowed)

    def begin(self, uid: str, cgroup: Path, low: int, own_high: str) -> int | None:
        """`slow_down` a pod; ``own_high``: its memory.high before the hold. Raises OSError."""
        self._slowed[uid] = (cgroup, low, own_high)
        high = slow_down(cgroup, low, self._journal)
        if high is None:
            del self._slowed[uid]
        return high

    def end(self, uid: str) -> None:
        """Take it back. What cannot be the hot process does, which has it written down, or the cgroup is gone."""
        slowed = self._slowed.pop(uid, None)
        if slowed is not None:
            with suppress(OSError):
                speed_up(*slowed)


def slow_down(cgroup: Path, low: int, journal: HoldJournal) -> int | None:
    """Have whoever is in a system call of a frozen pod sleep for what he takes, as `PodBrake` does by itself from Linux
    6.16 on; the memory.high that is in force, None where the pod is not held any more. ``low``: written down by the
    hold already (`PodBrake.low`): a file on a disk took 1 s in a busy guest, and the call was at the cap by then. May
    block for seconds. Raises OSError.
    """
    with opened(cgroup) as directory, closing(BrakeFile(cgroup, HIGH)) as file:
        change = _noted(directory, file, low, journal)
        if change is None:
            return None
        before = file.read()
        own = cgroupfs.limit_of(before.encode())
        if own is not None and own <= low:
            return own
        file.write(str(low))
        if _noted(directory, file, low, journal) is not None:
            return low
        if file.read() == str(low):  # else the release has put it back already
            file.write(change.old if before in change.written else before)
        return None


def speed_up(cgroup: Path, low: int, own_high: str) -> bool:
    """Take that back, where it is there still; whether it was. Raises OSError."""
    with closing(BrakeFile(cgroup, HIGH)) as file:
        if file.read() != str(low):
            return False
        file.write(own_high)
    return True


def _noted(directory: int, file: BrakeFile, low: int, journal: HoldJournal) -> Change | None:
    """What is written down of memory.high at this very cgroup, if it is held and ``low`` will come back."""
    try:
        changes = journal.changes(directory)
    except ValueError:
        return None
    for change in changes:
        is_same = (change.file, change.identity, change.boot) == (HIGH, file.identity, journal.boot)
        if is_same and change.why == HELD and str(low) in change.written:
            return change
    return None
