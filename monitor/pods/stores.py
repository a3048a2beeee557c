"""The stores of container runtimes that can be cleaned up: what the words `cri` and `podman` mean."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

CRI, PODMAN = "cri", "podman"
_SCHEME = "unix://"
#: Where runtimes listen for CRI, in the order of the kubelet's own preference; the last is k3s' and rke2's.
CRI_SOCKETS = ("/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/k3s/containerd/containerd.sock")


class Store(NamedTuple):
    """`kind` is `CRI` or `PODMAN`; `socket` the path of a CRI runtime's socket, "" for the first that is there."""

    kind: str
    socket: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{_SCHEME}{self.socket}" if self.socket else self.kind

    @property
    def found(self) -> str:
        """The socket that is meant here; "" if there is none."""
        return self.socket or next(filter(os.path.exists, CRI_SOCKETS), "")


def parse_store(text: str) -> Store | None:
    """`cri`, `cri:unix:///run/x.sock` or `podman`; None for anything else, which is a command.

    Raises ValueError for `cri:` with something that is no socket.
    """
    kind, colon, address = text.partition(":")
    if kind == CRI and colon:
        if not address.startswith(f"{_SCHEME}/"):
            raise ValueError(f"{text!r} is not a runtime's socket such as 'cri:{_SCHEME}{CRI_SOCKETS[0]}'")
        return Store(CRI, address.removeprefix(_SCHEME))
    return Store(text) if text in (CRI, PODMAN) else None


def store_of(command: Sequence[str]) -> Store | None:
    """The store that the value of one of the two options means; None if it is a command, or nothing."""
    return parse_store(command[0]) if len(command) == 1 else None
