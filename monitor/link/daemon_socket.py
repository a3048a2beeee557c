"""The socket of a daemon, under which its commands find it, and what it says of itself there: defined once, for the
side that answers and the commands that ask.

One daemon runs on a machine: its run directory is locked, and a side that is started again replaces the socket of the
one before. The protocol is HTTP/1.1, GET alone.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from monitor.owner import changed_by
from monitor.race.codec import RecordError, decode

#: Paths that are answered: what the daemon is (`DaemonInfo`), and its figures as on `--listen`.
INFO_PATH = "/daemon"
SUMMARY_PATH = "/stats/summary"
#: Counted up when a field changes its meaning; a command ignores fields that it does not know.
PROTOCOL = 1
#: Its name in the run directory.
SOCKET = "daemon.sock"
#: Bytes of an answer that a command reads at most. The summary of 500 pods takes 0.6 MB.
MAX_ANSWER = 16 << 20


class DaemonInfo(NamedTuple):
    """The answer to `INFO_PATH`."""

    protocol: int
    version: str  # of outrace
    hot_pid: int
    side_pid: int
    started: float  # Unix seconds, of the side
    not_ready: str  # why it cannot decide yet; "" if it can
    conditions: Sequence[str]  # node conditions that are true, the transition period included
    config: Mapping[str, Any]  # fields of `monitor.settings.config.RunConfig`

    def to_json(self) -> bytes:
        return json.dumps(self._asdict(), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: str | bytes) -> DaemonInfo:
        """Raises ValueError for anything but the answer of a daemon of this protocol."""
        try:
            fields = json.loads(text)
        except RecursionError:
            raise RecordError("nested too deeply") from None
        info: DaemonInfo = decode(cls, fields)
        if info.protocol != PROTOCOL:
            raise RecordError(f"protocol {info.protocol}, where this outrace has {PROTOCOL}")
        return info


def run_dir() -> str:
    """Where the socket is. Another one is for daemons in a lab, which run beside that of the machine."""
    return os.environ.get("OUTRACE_RUN_DIR") or "/run/outrace"


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[int]:
    """A directory, open. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def address(directory: int, name: str = SOCKET) -> str:
    """The address of a socket in an open directory: unix(7) takes 107 bytes, and the directory's path may be longer."""
    return f"/proc/self/fd/{directory}/{name}"


def check_directory(directory: int) -> None:
    """Raises OSError if any user but root and that of this process can put a socket into the open directory, or another
    directory in its place: root's commands would believe it.
    """
    if problem := changed_by(Path(os.readlink(f"/proc/self/fd/{directory}"))):
        raise OSError(0, problem)
