"""A feed of the API server in its thread, which keeps what it hears."""

import threading
from collections.abc import Mapping

from monitor.errors import MonitorError
from monitor.kube.client import ApiClient
from monitor.kube.retry import BackOff
from monitor.pods.feed import ApiServerFeed, Known
from tests.waiting import until


class Running(ApiServerFeed):
    """Started; ``now`` are the pods by uid that follow from what it heard."""

    def __init__(self, client: ApiClient, selector: str, silence_s: float = 20.0) -> None:
        super().__init__(client, selector, "test")
        self._back_off, self._silence_s = BackOff(first_s=0.02, cap_s=0.1), silence_s
        self.changes: list[str] = []
        self.errors: list[MonitorError] = []
        self.now: dict[str, str] = {}
        self.lists = self.watches = 0  # how many were answered
        self.thread = threading.Thread(target=self._guarded)
        self.thread.start()

    def replace_all(self, pods: Mapping[str, Known]) -> None:
        super().replace_all(pods)
        self.changes.append(f"all {' '.join(sorted(map(shown, pods.values())))}".strip())
        self.lists += 1
        self.now = {uid: shown(one) for uid, one in pods.items()}  # last, here and below: `knows` waits for it

    def put(self, one: Known) -> None:
        super().put(one)
        self.changes.append(f"{'changed' if one.uid in self.now else 'new'} {shown(one)}")
        self.now[one.uid] = shown(one)

    def drop(self, uid: str) -> None:
        super().drop(uid)
        self.changes.append(f"deleted {self.now[uid]}")
        del self.now[uid]

    def answered(self, failure: str = "") -> None:
        super().answered(failure)
        self.watches += not failure

    def _failed(self, error: MonitorError) -> None:
        self.errors.append(error)
        super()._failed(error)

    def knows(self, *pods: str) -> None:
        """Wait until these are all the pods."""
        until(lambda: self.synced and sorted(self.now.values()) == sorted(pods), self.heard)
        assert {uid: shown(one) for uid, one in self._pods.items()} == self.now

    def watched(self, count: int) -> None:
        until(lambda: self.watches >= count, self.heard)

    def heard(self) -> str:
        return f"{self.now}, {self.changes}, {self.errors}"


def shown(one: Known) -> str:
    return f"{one.object['metadata']['name']}:{one.object['status'].get('phase', '?')}"
