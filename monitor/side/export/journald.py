"""The journal's own protocol: every field of a log line becomes a field of the entry, so that
``journalctl OUTRACE_VERDICT=oom_during_grace`` finds it (systemd's "Native Journal Protocol").
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import struct
from collections.abc import Mapping
from typing import Any

SOCKET = "/run/systemd/journal/socket"
_NAME = re.compile("[^A-Z0-9_]")
#: journald takes names of up to 64 characters.
_LONGEST_NAME = 64


def entry(text: str, priority: int, message: str, fields: Mapping[str, Any]) -> bytes:
    """One entry: ``text`` is what `journalctl` shows, ``message`` and ``fields`` are `OUTRACE_MSG`, `OUTRACE_NAME`."""
    named: dict[str, str] = {"MESSAGE": text, "PRIORITY": str(priority), "SYSLOG_IDENTIFIER": "outrace"}
    for key, value in {"msg": message, **fields}.items():
        name = ("OUTRACE_" + _NAME.sub("_", key.upper()))[:_LONGEST_NAME]
        named[name] = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
    return b"".join(_field(name, value.encode(errors="backslashreplace")) for name, value in named.items())


def _field(name: str, value: bytes) -> bytes:
    if b"\n" in value:
        return name.encode() + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"
    return name.encode() + b"=" + value + b"\n"


class Journal:
    """The socket of journald. `send` raises OSError when it is not there."""

    def __init__(self, path: str = SOCKET) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def send(self, data: bytes) -> None:
        """One entry. One too large for a datagram goes as a sealed file, as the protocol wants it."""
        try:
            self._socket.sendto(data, self._path)
        except OSError as error:
            if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                raise
            self._send_file(data)

    def _send_file(self, data: bytes) -> None:
        import fcntl

        fd = os.memfd_create("outrace-journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            while data:
                data = data[os.write(fd, data) :]
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("@i", fd))]
            self._socket.sendmsg([b""], rights, 0, self._path)
        finally:
            os.close(fd)
