"""When OOM kills were reported without BPF, so that the next daemon with BPF does not report them again.

The OOM programs stay attached when a daemon ends, and go on to write; nobody reads what they write before a daemon
takes a BPF hook again. What a rung without BPF reported meanwhile is a span of time in a file of
the state dir: one line for each daemon, of a fixed length, written again at each kill.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

#: In the state dir.
FILE_NAME = "told-without-bpf"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Bytes of a line: a boot id is 36, each of the two times at most 20.
_LINE = 80
#: Lines before the file begins anew: where no BPF rung is ever taken nobody else clears it.
_LINES = 256

Span = tuple[int, int]  # from, to: CLOCK_MONOTONIC, in ns


class ReportedKills:
    """What this daemon reports without BPF. Nothing is written before the first kill."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE_NAME
        self._fd = -1
        self._at = 0
        self._since_ns: int | None = None

    def note(self, since_ns: int, until_ns: int) -> None:
        """All kills of this span are reported; it replaces one that began alike. Raises OSError."""
        if self._fd < 0:
            self._boot = _BOOT_ID.read_text().strip()
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            size = os.fstat(self._fd).st_size
            if size >= _LINE * _LINES:
                os.ftruncate(self._fd, 0)
                size = 0
            self._at = -(-size // _LINE) * _LINE
        elif since_ns != self._since_ns:
            self._at += _LINE
        self._since_ns = since_ns
        line = f"{self._boot} {since_ns} {until_ns}".ljust(_LINE - 1) + "\n"
        os.pwrite(self._fd, line.encode(), self._at)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def spans(state_dir: Path) -> list[Span]:
    """The spans of this boot. Whoever asks reads the programs' records now, and then has them forgotten (`forget`).

    Lines that are not of this boot or no lines are passed over; so is a file that cannot be read.
    """
    path = state_dir / FILE_NAME
    try:
        boot, lines = _BOOT_ID.read_text().strip(), path.read_text(errors="replace").replace("\0", "\n").splitlines()
    except OSError:
        return []
    found = []
    for fields in (line.split() for line in lines):
        if len(fields) == 3 and fields[0] == boot and fields[1].isdigit() and fields[2].isdigit():
            found.append((int(fields[1]), int(fields[2])))
    return found


def forget(state_dir: Path) -> None:
    """The programs' records of those spans were read."""
    with suppress(OSError):
        (state_dir / FILE_NAME).unlink()


def holds(spans: Sequence[Span], ts_ns: int) -> bool:
    """Whether this time lies in one of the spans."""
    return any(since <= ts_ns <= until for since, until in spans)
