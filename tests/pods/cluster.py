"""A cluster for tests: a fake API server and kubelet, pods in it, and cgroups as a kubelet lays them out."""

import select
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from monitor.kernel import cgroupfs
from monitor.kube import transport
from monitor.kube.client import ApiClient
from monitor.kube.cluster import ClusterConfig, parse_server
from monitor.kube.kubelet import KubeletClient
from monitor.kube.retry import BackOff
from monitor.pods.cluster_source import ClusterSource
from monitor.pods.feed import ApiServerFeed, KubeletFeed, PodCache, PodFeed
from monitor.pods.model import Change, Within
from tests.kube import fake_apiserver
from tests.kube.fake_apiserver import FakeApiServer
from tests.kube.fake_kubelet import FakeKubelet
from tests.waiting import until

NODE = "node-1"
Object = dict[str, Any]
Feed = TypeVar("Feed", ApiServerFeed, KubeletFeed)


def a_pod(name: str, uid: str = "", *, namespace: str = "shop", priority: int = 0, memory: str = "64Mi") -> Object:
    """A Running pod of one container, as an API server serves it."""
    uid = uid or str(uuid.uuid4())
    statuses = [{"name": "main", "containerID": f"containerd://{uid.replace('-', '')}"}]
    made = fake_apiserver.pod(name, NODE, namespace, qosClass="Burstable", containerStatuses=statuses)
    made["metadata"] |= {"uid": uid, "resourceVersion": "7"}
    resources = {"requests": {"memory": memory}}
    made["spec"] |= {"priority": priority, "containers": [{"name": "main", "resources": resources}]}
    return made


def uid_of(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


class Cluster:
    """``root`` is the cgroup of the node. Feeds and sources end with it."""

    def __init__(self, root: Path, state: Path) -> None:
        self.root = root
        self.state = state
        self.api = FakeApiServer()
        self.kubelet = FakeKubelet()
        self._opened: list[PodFeed | ClusterSource] = []

    def create(self, pod: Object, cgroup: bool = True, **where: str) -> Path:
        """A pod that the API server and the kubelet know, and its cgroup."""
        self.api.store.create("pods", pod)
        self.kubelet.pods = [*(self.kubelet.pods or []), pod]
        return self.cgroup(uid_of(pod), **where) if cgroup else self.root

    def delete(self, name: str, namespace: str = "shop") -> None:
        self.api.store.delete(("pods", namespace, name))
        self.kubelet.pods = [one for one in self.kubelet.pods or [] if one["metadata"]["name"] != name]

    def cgroup(self, uid: str, qos: str = "burstable", container: str = "") -> Path:
        """The pod's, with its container's in it."""
        pod = self.root / "kubepods" / qos / f"pod{uid}"
        cgroupfs.make(pod / (container or uid.replace("-", "")))
        return pod

    def remove_cgroup(self, uid: str) -> None:
        for pod in self.root.glob(f"kubepods/*/pod{uid}"):
            for path in (*pod.iterdir(), pod):
                if path.is_dir():
                    path.rmdir()

    def watched(self, cache: bool = False) -> ApiServerFeed:
        client = ApiClient(ClusterConfig(parse_server(self.api.url, "test")), timeout_s=60.0)
        stored = PodCache(self.state, NODE) if cache else None
        return self._open(ApiServerFeed(client, f"spec.nodeName={NODE}", "the API server", stored))

    def polled(self) -> KubeletFeed:
        client = KubeletClient(ClusterConfig(parse_server(self.kubelet.url, "test")))
        return self._open(KubeletFeed(client, "the kubelet"))

    def _open(self, feed: Feed) -> Feed:
        """It asks again soon."""
        feed._back_off = BackOff(first_s=0.02, cap_s=0.1)
        self._opened.append(feed)
        return feed

    def source(self, feed: PodFeed) -> ClusterSource:
        source = ClusterSource(feed, Within(cgroupfs.detect(), self.root))
        self._opened.append(source)
        return source

    def close(self) -> None:
        for one in self._opened:
            one.close()
        self.api.close()
        self.kubelet.close()


@pytest.fixture
def cluster(node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(transport, "SLICE_S", 0.05)
    found = Cluster(node, tmp_path)
    yield found
    found.close()


def look(source: ClusterSource, condition: Callable[[], bool]) -> Change:
    """Poll as the daemon does, until the condition holds; all changes in one."""
    total = Change()

    def polled() -> bool:
        select.select([source.fileno()], [], [], 0.05)
        change = source.poll()
        total.updated.extend(change.updated)
        total.removed.extend(change.removed)
        total.problems.extend(change.problems)
        return condition()

    try:
        until(polled, "what is looked for")
    except pytest.fail.Exception as error:
        pytest.fail(f"{error}: {named(source)}, unlisted {source.unlisted}, {source.problems}")
    return total


def named(source: ClusterSource) -> set[str]:
    """The pods that are known and have a cgroup."""
    return {f"{one.pod.namespace}/{one.pod.name}" for one in source.pods.values()}
