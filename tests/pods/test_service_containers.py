"""Containers among the services of a machine: names and labels by a server at a real unix socket that answers as docker
and podman were seen to (and is neither).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods import runtimes
from monitor.pods.runtimes import Runtimes
from monitor.policy.resources import pod_request
from tests.pods.fake_runtime import IMAGES, LIST, FakeRuntime, podman
from tests.pods.unit_tree import ID, MI, OTHER, POD, Start, again, looked, pods, source, write_request
from tests.pods.unit_tree import start as start
from tests.pods.unit_tree import tree as tree
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.newest]


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[FakeRuntime]:
    answer = [
        {"Id": ID, "Names": ["/web"], "Image": "nginx", "Labels": {"outrace/priority": "5"}, "State": "running"},
        {"Id": OTHER, "Names": ["/db"], "Image": "db", "Labels": {"outrace/never": "true"}, "State": "running"},
    ]
    server = FakeRuntime(tmp_path / "docker.sock", {LIST: answer, IMAGES: []})
    yield server
    server.close()


def test_containers_have_names_and_labels(
    tree: tuple[Hierarchy, Path], start: Start, docker: FakeRuntime, tmp_path: Path
) -> None:
    start(f"system.slice/docker-{ID}.scope")
    start(f"docker/{OTHER}")
    known = Runtimes({"docker": str(tmp_path / "docker.sock")})
    with source(tree, runtimes=known) as found:
        assert found.poll().problems == []
        web, db = pods(found)["docker/web"], pods(found)["docker/db"]
        assert (web.uid, web.priority, web.taken_critical) == (ID, 5, "")
        assert db.taken_critical == "label outrace/never"
        again(found)
    assert docker.asked == [LIST, IMAGES]  # once: a known container causes no question


@pytest.mark.parametrize("prefix", ["", "sha256:"], ids=["bare", "with its kind"])
def test_a_label_of_an_image_is_not_its_operators(tmp_path: Path, prefix: str) -> None:
    """The runtimes answer both as the container's; not all write an image's id alike in both lists."""
    labels = {"outrace/never": "true", "outrace/priority": "7", "outrace/request": "1Gi", "maintainer": "x"}
    image = {"Id": f"sha256:{POD}", "Labels": {**labels, "outrace/request": "2Gi"}}
    listed = [
        {"Id": ID, "Names": ["/web"], "ImageID": f"{prefix}{POD}", "Labels": labels},
        {"Id": OTHER, "Names": ["/db"], "ImageID": f"{prefix}{ID}", "Labels": {"outrace/never": "true"}},
    ]
    server = FakeRuntime(tmp_path / "docker.sock", {LIST: listed, IMAGES: [image, {"Id": ID, "Labels": None}]})
    known = Runtimes({"docker": str(tmp_path / "docker.sock")})
    try:
        known.refresh({ID: "docker", OTHER: "docker"})
    finally:
        server.close()
    assert known.problems == []
    web, db = known.known(ID), known.known(OTHER)
    assert web is not None
    assert web.labels == {"outrace/request": "1Gi", "maintainer": "x"}
    assert db is not None
    assert db.labels == {"outrace/never": "true"}


def test_containers_of_a_runtime_that_does_not_answer_are_not_evicted(
    tree: tuple[Hierarchy, Path], start: Start, tmp_path: Path
) -> None:
    start(f"system.slice/docker-{ID}.scope")
    start(f"system.slice/docker-{OTHER}.scope")
    rules = {f"docker/{OTHER[:12]}": {"never": False}}
    with source(tree, rules, runtimes=Runtimes({"docker": str(tmp_path / "none")})) as found:
        (problem,) = found.poll().problems
        known = pods(found)
    assert "docker does not answer" in problem
    assert "not known" in known[f"docker/{ID[:12]}"].taken_critical
    assert known[f"docker/{OTHER[:12]}"].taken_critical == ""


MEMBERS = [{"Id": OTHER, "Names": "shop-infra", "Status": "running"}, {"Id": ID, "Names": "cart", "Status": "running"}]


def test_a_pod_of_podman_is_one_pod_with_its_containers_amounts(
    tree: tuple[Hierarchy, Path], start: Start, tmp_path: Path
) -> None:
    slice_ = f"machine.slice/machine-libpod_pod_{POD}.slice"
    cart = start(f"{slice_}/libpod-{ID}.scope")
    start(f"{slice_}/libpod-{OTHER}.scope")
    start(f"{slice_}/libpod-conmon-{ID}.scope")
    write_request(tree[0], cart, 32 * MI)
    (cart / ("memory.max" if tree[0].version == 2 else "memory.limit_in_bytes")).write_text(str(64 * MI))
    listed = [{"Id": OTHER, "Names": ["/shop-infra"]}, {"Id": ID, "Names": ["/cart"], "Labels": {}}]
    with podman(tmp_path, listed, {"Containers": MEMBERS, "Labels": {}}) as known:
        (pod,) = looked(tree, runtimes=known).values()
    assert (pod.namespace, pod.name, pod.uid, pod.taken_critical) == ("podman", "shop", POD, "")
    assert pod_request(pod, "memory").value == 32 * MI
    assert pod.containers[0].limits["memory"].value == 64 * MI


@pytest.mark.parametrize("cgroup", ["the pod's", "none"])
def test_a_container_that_may_never_go_keeps_its_pod(
    tree: tuple[Hierarchy, Path], start: Start, tmp_path: Path, cgroup: str
) -> None:
    """... and a container whose pod has no cgroup has the pod's priority (podman 4.3 with --infra=false)."""
    start(f"libpod_parent/{POD}/libpod-{ID}" if cgroup == "the pod's" else f"libpod_parent/libpod-{ID}")
    listed = [{"Id": ID, "Names": ["/cart"], "Labels": {"outrace/never": "true"}}]
    labels = {"outrace/priority": "9"}
    with podman(tmp_path, listed, {"Containers": MEMBERS, "Labels": labels}) as known:
        (pod,) = looked(tree, runtimes=known).values()
    assert pod.name == ("shop" if cgroup == "the pod's" else "cart")
    assert (pod.priority, pod.taken_critical) == (9, "label outrace/never")


def test_a_runtime_that_hangs_is_asked_ever_more_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "TIMEOUT_S", 0.1)
    server = FakeRuntime(tmp_path / "docker.sock", {LIST: []}, hangs=True)
    now = 1000.0
    known = Runtimes({"docker": str(tmp_path / "docker.sock")}, clock=lambda: now)
    try:
        for _ in range(20):
            known.refresh({ID: "docker"})
            assert known.unsettled
            now += 1.0
        until(lambda: len(server.asked) >= 5, "the server to read the last question")
    finally:
        server.close()
    assert server.asked == [LIST] * 5  # after 0, 1, 3, 7 and 15 seconds
    assert "docker does not answer" in known.problems[0]


def test_an_endless_answer_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "MOST_BYTES", 100)
    server = FakeRuntime(tmp_path / "docker.sock", {LIST: ["x" * 200]})
    try:
        with pytest.raises(ValueError, match="more than"):
            runtimes.ask(str(tmp_path / "docker.sock"), LIST)
        with pytest.raises(ValueError, match="404"):
            runtimes.ask(str(tmp_path / "docker.sock"), "/other")
    finally:
        server.close()
