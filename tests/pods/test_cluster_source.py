"""Pods of a cluster and their cgroups: whose is whose, what is not listed, and what no user may set for an own pod."""

import subprocess
import threading
import time
import uuid

import pytest

from monitor.kernel import cgroupfs
from monitor.kube.errors import ResourceExpired
from monitor.pods import feed as feeds
from monitor.pods.cluster_source import UNLISTED_S
from monitor.policy.qos import is_critical
from monitor.policy.releases import CURRENT
from tests.pods.cluster import Cluster, a_pod, look, named, uid_of

pytestmark = [pytest.mark.live, pytest.mark.newest]


@pytest.mark.parametrize("kind", ["watched", "polled"])
def test_pods_have_their_names_requests_and_priorities(cluster: Cluster, kind: str) -> None:
    db = a_pod("db", priority=1_000_000, memory="64Mi")
    batch = a_pod("batch", priority=-10, memory="1Gi")
    cluster.create(db)
    path = cluster.create(batch, qos="besteffort")
    source = cluster.source(getattr(cluster, kind)())
    assert not source.is_complete
    look(source, lambda: named(source) == {"shop/db", "shop/batch"})
    assert source.is_complete
    found = source.pods[uid_of(batch)]
    assert (found.pod.known_priority, found.cgroup) == (-10, path)
    assert CURRENT.request(source.pods[uid_of(db)].pod, "memory").value == 64 << 20
    assert not source.is_failing
    assert found.containers == {"main": path / uid_of(batch).replace("-", "")}
    assert (source.problems, source.unlisted) == ((), ())


def test_a_deleted_pod_is_known_while_its_cgroup_is_there(cluster: Cluster) -> None:
    pod = a_pod("a")
    cluster.create(pod)
    cluster.create(a_pod("b"))
    source = cluster.source(cluster.watched())
    look(source, lambda: len(named(source)) == 2)
    cluster.delete("a")
    look(source, lambda: source.pods[uid_of(pod)].pod.phase == "Succeeded")
    source.feed._clock = lambda: time.monotonic() + 3600
    cluster.create(a_pod("c"))
    look(source, lambda: named(source) == {"shop/a", "shop/b", "shop/c"})
    cluster.remove_cgroup(uid_of(pod))
    look(source, lambda: named(source) == {"shop/b", "shop/c"})
    assert source.unlisted == ()


def test_after_a_restart_without_network_all_is_known(cluster: Cluster) -> None:
    pod = a_pod("a", priority=3)
    cluster.create(pod)
    source = cluster.source(cluster.watched(cache=True))
    look(source, lambda: (cluster.state / "pods-cache.json").exists())
    source.close()
    cluster.api.refuse()
    again = cluster.source(cluster.watched(cache=True))
    change = again.poll()
    assert again.is_complete
    assert [(one.pod.name, one.pod.priority) for one in change.updated] == [("a", 3)]
    look(again, lambda: any("its last pods stay in use" in one for one in again.problems))
    assert named(again) == {"shop/a"}
    without = cluster.source(cluster.watched())  # no cache: nothing is guessed
    look(without, lambda: without.unlisted == (uid_of(pod),))
    assert (without.is_complete, without.pods) == (False, {})


def test_what_a_tenant_writes_into_his_pod_kills_and_saves_nobody(cluster: Cluster) -> None:
    """A user that may create pods somewhere sets neither which cgroup is killed nor that the own pod is spared."""
    victim, hostile, none = a_pod("victim"), a_pod("hostile", namespace="tenant"), a_pod("none", namespace="tenant")
    victims = cluster.create(victim)
    root = cgroupfs.detect().root
    for pod in (hostile, none):
        pod["metadata"]["annotations"] = {
            "outrace/cgroup": str(victims.relative_to(root)),
            "outrace/cgroup.main": str(next(path for path in victims.iterdir() if path.is_dir()).relative_to(root)),
            "kubernetes.io/config.source": "file",
            "kubernetes.io/config.hash": "e2" * 16,
        }
    cluster.cgroup("e2" * 16)  # a static pod's
    cluster.create(none, cgroup=False)
    own = cluster.create(hostile)
    source = cluster.source(cluster.watched())
    look(source, lambda: named(source) == {"shop/victim", "tenant/hostile"})
    found = source.pods[uid_of(hostile)]
    assert found.cgroup == own
    assert all(path.is_relative_to(own) for path in found.containers.values())
    assert not is_critical(found.pod)
    assert not any(key.startswith("outrace/") for key in found.pod.annotations)
    assert (source.unlisted, source.problems) == (("e2" * 16,), ())


def test_static_pods_by_the_kubelet_and_their_mirrors_by_the_api_server(cluster: Cluster) -> None:
    digest = "0123456789abcdef" * 2
    path = cluster.cgroup(digest)
    static = a_pod("etcd", digest, namespace="kube-system")
    del static["metadata"]["resourceVersion"]
    static["metadata"]["annotations"] = {"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": digest}
    mirror = a_pod("etcd", namespace="kube-system")
    mirror["metadata"]["annotations"] = static["metadata"]["annotations"] | {"kubernetes.io/config.mirror": digest}
    cluster.kubelet.pods = [static]
    cluster.api.store.create("pods", mirror)
    for feed in (cluster.polled(), cluster.watched()):
        source = cluster.source(feed)
        look(source, lambda: named(source) == {"kube-system/etcd"})  # noqa: B023 - called before the next one
        [found] = source.pods.values()
        assert found.cgroup == path
        assert is_critical(found.pod)
        assert source.unlisted == ()


def test_pods_without_any_cgroup_are_reported(cluster: Cluster) -> None:
    """A wrong --node-name or cgroup root: nothing would be evicted, and nothing logged."""
    for name in ("a", "b"):
        cluster.create(a_pod(name), cgroup=False)
    source = cluster.source(cluster.watched())
    change = look(source, lambda: bool(source.problems))
    assert "none of 2 running pods has a cgroup in any kubepods" in change.problems[0]
    assert "cgroupRoot in --kubelet-config FILE, or the right --node-name" in change.problems[0]


@pytest.mark.parametrize("kind", ["watched", "polled"])
def test_pods_that_come_and_go(cluster: Cluster, kind: str) -> None:
    """200 pods, then one created and one deleted at a time, faster than anybody looks: no wrong name, none missed."""

    def uid(name: str) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, name))

    def known() -> set[str]:
        return {one.pod.name for one in source.pods.values()}

    first, later = ([f"{letter}{i}" for i in range(count)] for letter, count in (("p", 200), ("q", 100)))
    for name in first:
        cluster.create(a_pod(name, uid(name)))
    source = cluster.source(getattr(cluster, kind)())
    look(source, lambda: known() == set(first))

    def churn() -> None:
        for new, gone in zip(later, first, strict=False):
            cluster.create(a_pod(new, uid(new)))
            cluster.delete(gone)
            cluster.remove_cgroup(uid(gone))

    thread = threading.Thread(target=churn)
    thread.start()

    def right() -> bool:
        for found in source.pods.values():
            assert (found.pod.uid, found.cgroup.name) == (uid(found.pod.name), f"pod{uid(found.pod.name)}")
        return not thread.is_alive() and known() == {*first[len(later) :], *later}

    look(source, right)
    thread.join()
    assert source.unlisted == ()


def test_kubepods_that_goes_and_comes_back(cluster: Cluster) -> None:
    """`kubeadm reset`, and a node that is drained to the last pod under the systemd driver."""
    pod = a_pod("a")
    cluster.create(pod)
    source = cluster.source(cluster.watched())
    look(source, lambda: bool(source.pods))
    before = source.pods[uid_of(pod)].cgroup_ids
    cluster.remove_cgroup(uid_of(pod))
    for path in (cluster.root / "kubepods/burstable", cluster.root / "kubepods"):
        path.rmdir()
    look(source, lambda: not source.pods)
    cluster.cgroup(uid_of(pod))
    look(source, lambda: bool(source.pods) and source.pods[uid_of(pod)].cgroup_ids != before)


@pytest.mark.parametrize(
    "directory",
    [
        "system.slice/containerd.service/{slice}:cri-containerd:{id}",
        "system.slice/cri-containerd-{id}.scope",
        "k8s.io/{id}",
    ],
)
def test_containers_outside_kubepods_are_named_and_their_pods_are_not_ranked_by_zeros(
    cluster: Cluster, directory: str
) -> None:
    """The runtime has another cgroup driver than the kubelet."""
    ended, pod = a_pod("b"), a_pod("a")
    for one in (ended, pod):
        cluster.create(one, cgroup=False)
        name = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid_of(one).replace('-', '_')}.slice"
        own = cgroupfs.make(cluster.root / name)
    where = cgroupfs.make(cluster.root / directory.format(slice=own.name, id=uid_of(pod).replace("-", "")))
    with subprocess.Popen(["sleep", "600"]) as process:
        (where / "cgroup.procs").write_text(str(process.pid))
        source = cluster.source(cluster.polled())
        look(source, lambda: bool(source.problems))
        (problem,) = source.problems
        assert f"its containers run in {where}, and its cgroup {cluster.root}/kubepods.slice/" in problem
        assert "another cgroup driver than the kubelet; the pod is not watched, and never evicted; give both" in problem
        assert named(source) == {"shop/b"}  # one that has ended is in no other cgroup
        right = cgroupfs.make(own / f"cri-containerd-{'0' * 64}.scope")
        (right / "cgroup.procs").write_text(str(process.pid))
        look(source, lambda: named(source) == {"shop/a", "shop/b"})
        process.kill()


@pytest.mark.parametrize("kind", ["watched", "polled"])
def test_a_cgroup_that_is_not_listed_is_held_apart_then_reported_then_known(cluster: Cluster, kind: str) -> None:
    source = cluster.source(getattr(cluster, kind)())
    look(source, lambda: source.is_complete)  # kubepods itself comes later than outrace
    cluster.create(a_pod("a"))
    look(source, lambda: named(source) == {"shop/a"})
    new = a_pod("new")
    path = cluster.cgroup(uid_of(new))
    look(source, lambda: source.unlisted == (uid_of(new),))
    assert named(source) == {"shop/a"}  # nothing is guessed
    assert source.problems == ()  # not at once: the kubelet makes it before its pod can be had
    source._unlisted[uid_of(new)] -= UNLISTED_S
    source._next_scan = 0.0
    (problem,) = look(source, lambda: bool(source.problems)).problems
    assert f"has no pod {uid_of(new)}, whose cgroup is {path}: it is not watched, and never evicted" in problem
    cluster.create(new)
    look(source, lambda: named(source) == {"shop/a", "shop/new"})
    assert source.unlisted == ()


def test_an_expired_version_is_no_problem(cluster: Cluster) -> None:
    """Every watch meets that some day, and lists again: a warning each time would be noise."""
    feed = cluster.watched()
    feed._failed(ResourceExpired("too old"))
    assert feed.problems() == []


def test_the_kubelet_is_asked_as_soon_as_a_container_or_its_pod_comes_or_goes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes the id of one, and that it evicted a pod, a moment later: neither waits for the next question."""
    monkeypatch.setattr(feeds, "POLL_S", 600.0)
    monkeypatch.setattr("monitor.pods.cluster_source.CHANGING_S", 0.0)
    pod = a_pod("a")
    status = {**pod["status"], "containerStatuses": []}
    path = cluster.create({**pod, "status": status}, container="sandbox")
    source = cluster.source(cluster.polled())
    evicted: list[str] = []
    source.feed.ends = source.feed.ends._replace(evicted=lambda uid, *_: evicted.append(uid))
    look(source, lambda: named(source) == {"shop/a"})
    monkeypatch.setattr("monitor.pods.cluster_source.CHANGING_S", 600.0)
    container = cgroupfs.make(path / uid_of(pod).replace("-", ""))
    look(source, lambda: source.feed._followed_until > time.monotonic())
    cluster.kubelet.pods = [pod]
    look(source, lambda: source.pods[uid_of(pod)].containers == {"main": container})
    source.feed._followed_until = 0.0
    container.rmdir()
    look(source, lambda: source.feed._followed_until > time.monotonic())
    assert evicted == []
    pod["status"] |= {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    look(source, lambda: evicted == [uid_of(pod)])
    source.feed._followed_until = 0.0
    cluster.remove_cgroup(uid_of(pod))
    look(source, lambda: not source.pods)
    assert source.feed._followed_until > time.monotonic()
