"""Tokens: a fixed one, or a file that is rotated. (`monitor.kube.kubeconfig` has plugins that print them.)"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Protocol

from monitor.documents import read_bytes
from monitor.errors import ConfigError
from monitor.kube.tls import Stamp, stamp


class Credentials(Protocol):
    """Where the bearer token comes from that identifies outrace ("": none); called before every request, from any
    thread.
    """

    def current(self) -> str:
        """Raises MonitorError."""

    def refresh(self) -> str:
        """The same, read anew: the server answered 401 to the current one."""


class Fixed:
    """A token that does not change, or none."""

    def __init__(self, token: str = "") -> None:
        self._token = token

    def current(self) -> str:
        return self._token

    refresh = current


class TokenFile:
    """A token in a file, read again when it is rotated, and when the server refuses it.

    The kubelet renews a service account's after 80 % of its life; 2 us a look. While the file is away the last one is
    used on. ``key`` says where the file was named.
    """

    def __init__(self, path: Path, key: str = "token file") -> None:
        self._path = path
        self._key = key
        self._lock = threading.Lock()
        self._stamp: Stamp | None = None
        self._token = ""

    def current(self) -> str:
        now = stamp(self._path)
        with self._lock:
            if self._token and now in (self._stamp, None):
                return self._token
        return self.refresh()

    def refresh(self) -> str:
        now = stamp(self._path)  # before it is read: a rotation in between is seen at the next look
        try:
            token = read_bytes(self._path).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ConfigError(f"{self._key}: {self._path}: {why}", "name a readable file with a token") from None
        check_token(token, f"{self._key}: {self._path}")
        with self._lock:
            self._stamp, self._token = now, token
            return token


def check_token(token: str, where: str) -> None:
    """A token goes into a header as it is. Raises ConfigError, without the token."""
    if not token or not all("!" <= c <= "~" for c in token):
        raise ConfigError(f"{where}: {'empty' if not token else 'no token: it has spaces or control characters'}")
