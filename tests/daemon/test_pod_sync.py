"""Pods that the helper sends, as the hot process takes them in: what the kernel reports meanwhile does not wait."""

from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from monitor.hot.pod_sync import PodSync
from monitor.link import channel
from monitor.link.messages import PodGone, PodSeen, Synced


class Stand:
    """``log``: what was done, in order. Reading the ring is R, taking a pod in is its uid, dropping it -uid."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.fails: OSError | None = None
        self.sock, self.end = channel.pair()
        by_uid: dict[str, Any] = {}
        registry = MagicMock(by_uid=by_uid)
        registry.put.side_effect = self._put
        self._by_uid = by_uid
        given: dict[str, Any] = {
            "decider": MagicMock(forget=self._forget),
            **{name: MagicMock() for name in ("evictor", "housekeeping", "outbox")},
            "guard": self._guard,
            "registry": registry,
            "read_events": self._read,
        }
        self.pods = PodSync(**given)

    def _put(self, message: PodSeen) -> None:
        self.log.append(message.uid)
        if self.fails is not None:
            raise self.fails
        self._by_uid[message.uid] = SimpleNamespace(uid=message.uid)

    def _forget(self, uid: str) -> None:
        self.log.append(f"-{uid}")
        self._by_uid.pop(uid, None)

    def _read(self) -> None:
        self.log.append("R")
        raise OSError("the ring cannot be read")

    def _guard(self, step: Any, *arguments: Any) -> None:
        try:
            step(*arguments)
        except OSError:
            self.log.append("!")

    def send(self, *uids: str) -> None:
        for uid in uids:
            seen = PodSeen(uid, "ns", uid, 0, True, 0, "BestEffort", False, 30, cgroup="/c", containers={})
            assert channel.send(self.end, seen)

    def receive(self) -> str:
        self.log.clear()
        self.pods.receive(self.sock)
        return " ".join(self.log)


@pytest.fixture
def stand() -> Iterator[Stand]:
    made = Stand()
    with closing(made.sock), closing(made.end):
        yield made


def test_the_ring_is_read_between_pods(stand: Stand) -> None:
    """A helper that is started again sends all of them, and 128 were added before a crossing was read. A ring that
    cannot be read keeps no pod from being added.
    """
    stand.send("a", "b", "c")
    assert stand.receive() == "a R ! b R ! c R !"
    stand.pods.begin()
    stand.send("b")
    assert channel.send(stand.end, PodGone("c"))
    assert channel.send(stand.end, Synced())
    assert stand.receive() == "b R ! -c R ! -a R !"


def test_the_ring_is_read_between_pods_that_are_tried_again(stand: Stand) -> None:
    stand.fails = OSError(24, "no descriptor is left")
    stand.send("a", "b")
    stand.receive()
    stand.log.clear()
    stand.pods.retry(0)
    assert " ".join(stand.log) == "a R ! b R !"
