"""Containers among the services of a machine: names and labels as a runtime answers them (`FakeRuntime`)."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from monitor.kernel import cgroupfs
from monitor.kernel.procfs import Process
from monitor.pods import model, runtimes
from monitor.pods.runtimes import Runtimes
from monitor.policy.pods import Pod
from monitor.policy.resources import pod_request
from tests.pods.fake_runtime import IMAGES, LIST, FakeRuntime, podman
from tests.pods.unit_tree import ID, MANAGER, MI, OTHER, POD, USER, Machine, again, pid_of, pods
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.newest]
UNIT = "system.slice/web.service"


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[FakeRuntime]:
    answer = [
        {"Id": ID, "Names": ["/web"], "Image": "nginx", "Labels": {"outrace/priority": "5"}, "State": "running"},
        {"Id": OTHER, "Names": ["/db"], "Image": "db", "Labels": {"outrace/never": "true"}, "State": "running"},
    ]
    with closing(FakeRuntime(tmp_path / "docker.sock", {LIST: answer, IMAGES: []})) as server:
        yield server


def test_containers_have_names_and_labels(machine: Machine, docker: FakeRuntime, tmp_path: Path) -> None:
    machine.start(f"system.slice/docker-{ID}.scope", f"docker/{OTHER}")
    known = Runtimes({"docker": str(tmp_path / "docker.sock")})
    with machine.source(runtimes=known) as found:
        assert found.poll().problems == []
        web, db = pods(found)["docker/web"], pods(found)["docker/db"]
        assert (web.priority, web.taken_critical) == (5, "")
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
    known = Runtimes({"docker": str(tmp_path / "docker.sock")})
    with closing(FakeRuntime(tmp_path / "docker.sock", {LIST: listed, IMAGES: [image, {"Id": ID, "Labels": None}]})):
        known.refresh({ID: "docker", OTHER: "docker"})
    assert known.problems == []
    web, db = known.known(ID), known.known(OTHER)
    assert web.labels == {"outrace/request": "1Gi", "maintainer": "x"}
    assert db.labels == {"outrace/never": "true"}


def test_until_its_runtime_answers_a_container_stays(machine: Machine, tmp_path: Path) -> None:
    """Also one in a unit, and with a request; but for what the table has."""
    machine.start(*(f"system.slice/docker-{ident}.scope" for ident in (ID, OTHER)), "system.slice/plain.service")
    machine.request(machine.start(f"{UNIT}/libpod-payload-{POD}"), MI)
    rules = {f"docker/{OTHER[:12]}": {"never": False}}
    none = dict.fromkeys(("docker", "podman"), str(tmp_path / "none"))
    with machine.source(rules, runtimes=Runtimes(none)) as found:
        unanswered = {problem.partition(" does not answer")[0] for problem in found.poll().problems}
        known = {name: pod.taken_critical for name, pod in pods(found).items()}
    assert unanswered == none.keys()
    why = "its labels, which may forbid it, are not known"
    stay = {f"docker/{ID[:12]}": why, "system/web.service": why}
    assert known == {**stay, f"docker/{OTHER[:12]}": "", "system/plain.service": ""}


def by_podman(machine: Machine, containers: list[dict[str, Any]], pod: dict[str, Any] | None = None) -> dict[str, Pod]:
    """The pods of one look, where podman answers with these containers."""
    with podman(machine.sockets, containers, pod or {}) as known:
        return machine.looked(runtimes=known)


MEMBERS = [{"Id": OTHER, "Names": "shop-infra", "Status": "running"}, {"Id": ID, "Names": "cart", "Status": "running"}]


def test_a_pod_of_podman_is_one_pod_with_its_containers_amounts(machine: Machine) -> None:
    slice_ = f"machine.slice/machine-libpod_pod_{POD}.slice"
    cart = machine.start(*(f"{slice_}/libpod-{name}.scope" for name in (ID, OTHER, f"conmon-{ID}")))
    machine.request(cart, 32 * MI)
    cgroupfs.set_limit(cart, 64 * MI)
    listed = [{"Id": OTHER, "Names": ["/shop-infra"]}, {"Id": ID, "Names": ["/cart"], "Labels": {}}]
    (pod,) = by_podman(machine, listed, {"Containers": MEMBERS, "Labels": {}}).values()
    assert (pod.namespace, pod.name, pod.taken_critical) == ("podman", "shop", "")
    assert pod_request(pod, "memory").value == 32 * MI
    assert pod.containers[0].limits["memory"].value == 64 * MI


@pytest.mark.parametrize("cgroup", ["the pod's", "none"])
def test_a_container_that_may_never_go_keeps_its_pod(machine: Machine, cgroup: str) -> None:
    """... and a container whose pod has no cgroup has the pod's priority (podman 4.3 with --infra=false)."""
    machine.start(f"libpod_parent/{POD}/libpod-{ID}" if cgroup == "the pod's" else f"libpod_parent/libpod-{ID}")
    listed = [{"Id": ID, "Names": ["/cart"], "Labels": {"outrace/never": "true"}}]
    (pod,) = by_podman(machine, listed, {"Containers": MEMBERS, "Labels": {"outrace/priority": "9"}}).values()
    assert pod.name == ("shop" if cgroup == "the pod's" else "cart")
    assert (pod.priority, pod.taken_critical) == (9, "label outrace/never")


def test_a_runtime_that_hangs_is_asked_ever_more_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "TIMEOUT_S", 0.1)
    now = 1000.0
    known = Runtimes({"docker": str(tmp_path / "docker.sock")}, clock=lambda: now)
    with closing(FakeRuntime(tmp_path / "docker.sock", {LIST: []}, hangs=True)) as server:
        for _ in range(20):
            known.refresh({ID: "docker"})
            assert known.unsettled
            now += 1.0
        until(lambda: len(server.asked) >= 5, "the server to read the last question")
    assert server.asked == [LIST] * 5  # after 0, 1, 3, 7 and 15 seconds
    assert "docker does not answer" in known.problems[0]


def test_one_that_the_runtime_never_lists_delays_no_other(docker: FakeRuntime, tmp_path: Path) -> None:
    known = Runtimes({"docker": str(tmp_path / "docker.sock")}, clock=lambda: 0.0)
    for _ in range(2):
        known.refresh({POD: "docker"})
    assert docker.asked == [LIST, IMAGES]
    for _ in range(2):
        known.refresh({POD: "docker", ID: "docker"})
    assert docker.asked == [LIST, IMAGES] * 2
    assert known.known(ID) is not None


def test_an_endless_answer_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "MOST_BYTES", 100)
    with closing(FakeRuntime(tmp_path / "docker.sock", {LIST: ["x" * 200]})):
        with pytest.raises(ValueError, match="more than"):
            runtimes.ask(str(tmp_path / "docker.sock"), LIST)
        with pytest.raises(ValueError, match="404"):
            runtimes.ask(str(tmp_path / "docker.sock"), "/other")


def listed(**labels: str) -> list[dict[str, object]]:
    """The container, as podman lists it, with labels of outrace's."""
    return [{"Id": ID, "Names": ["/systemd-web"], "Labels": {f"outrace/{key}": text for key, text in labels.items()}}]


@pytest.mark.parametrize("above", ["system.slice", "user.slice/user-0.slice/user@0.service/app.slice"])
def test_the_unit_has_the_containers_labels(machine: Machine, above: str) -> None:
    payload = machine.start(f"{above}/web.service/libpod-payload-{ID}", f"{above}/web.service/runtime")
    cgroupfs.set_limit(payload, 64 * MI)
    (pod,) = by_podman(machine, listed(priority="7", request="24Mi")).values()
    assert (pod.name, pod.namespace, pod.priority) == ("web.service", "user-0" if "user" in above else "system", 7)
    assert pod.taken_critical == ""
    assert pod_request(pod, "memory").value == 24 * MI
    assert pod.containers[0].limits["memory"].value == 64 * MI


def test_labels_of_the_container_and_the_tables_names_count(machine: Machine, tmp_path: Path) -> None:
    machine.start(f"{UNIT}/libpod-payload-{ID}")
    with podman(tmp_path, listed(never="true", priority="7"), {}) as known:
        assert machine.looked(runtimes=known)["system/web.service"].taken_critical == "label outrace/never"
        for pattern in ("podman/systemd-web", "system/web*", "web.service"):
            assert machine.looked({pattern: {"priority": 3}}, runtimes=known)["system/web.service"].priority == 3


@pytest.mark.parametrize("shape", ["a unit", "a pod of podman"])
def test_conmon_beside_a_container_does_not_spare_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """conmon gives itself -1000 (which takes CAP_SYS_RESOURCE, that a machine of tests may not have: the one fake)."""
    if shape == "a unit":
        inside, conmon = machine.start(f"{UNIT}/libpod-payload-{ID}"), machine.start(f"{UNIT}/runtime")
    else:
        slice_ = f"machine.slice/machine-libpod_pod_{POD}.slice"
        inside, conmon = (
            machine.start(f"{slice_}/libpod-{ID}.scope"),
            machine.start(f"{slice_}/libpod-conmon-{ID}.scope"),
        )
    scores = {pid_of(inside): 250, pid_of(conmon): -1000}
    monkeypatch.setattr(Process, "oom_score_adj", lambda self: scores[self.pid])
    (pod,) = by_podman(machine, listed()).values()
    assert (pod.taken_critical, pod.priority) == ("", -250)


@pytest.mark.parametrize("unit", [f"{MANAGER}/app.slice/web.service", UNIT], ids=["a user's", "delegated to a user"])
def test_a_user_hides_nothing_behind_a_directory_of_that_name(machine: Machine, unit: str) -> None:
    """The labels of such a container could never be known. (Rootless podman has others than root's.)"""
    os.chown(machine.start(f"{unit}/libpod-payload-{ID}").parent, USER, USER)
    (pod,) = machine.looked().values()  # no runtime was asked: that would be a problem
    assert (pod.name, pod.taken_critical) == ("web.service", "")


def test_a_container_that_comes_later_is_seen_at_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """podman pulls its image first. No look at everything comes in time."""
    monkeypatch.setattr(model, "RESCAN_S", 3600.0)
    machine.start(f"{UNIT}/runtime")
    with podman(machine.sockets, listed(never="true"), {}) as known, machine.source(runtimes=known) as found:

        def spared() -> str:
            found.poll()
            return pods(found)["system/web.service"].taken_critical

        assert spared() == ""
        until(lambda: (found.poll(), found.due_s())[1] > 1800, "it settles")
        cgroupfs.make(machine.path / UNIT / "other")  # what the unit makes of its own costs no scan
        before = found._looks
        found.poll()
        assert found._looks is before
        machine.start(f"{UNIT}/libpod-payload-{ID}")
        assert until(spared, "the container") == "label outrace/never"


def test_a_container_without_a_process_yet_is_being_started(machine: Machine) -> None:
    machine.start(f"{UNIT}/runtime")
    cgroupfs.make(machine.path / UNIT / f"libpod-payload-{ID}")
    assert "being started" in by_podman(machine, listed())["system/web.service"].taken_critical


@pytest.mark.parametrize("own", [{"outrace/priority": "7", "other": "x"}, {"outrace/priority": "6"}, {}])
def test_containers_that_go_together_go_where_their_labels_are_alike(machine: Machine, own: dict[str, str]) -> None:
    machine.start(*(f"{UNIT}/libpod-payload-{ident}" for ident in (ID, OTHER)))
    other = {"Id": OTHER, "Names": ["/b"], "Labels": own}
    (pod,) = by_podman(machine, [*listed(priority="7"), other]).values()
    alike = (7, ""), (0, "its labels, which may forbid it, are not known")
    assert (pod.priority, pod.taken_critical) == alike["other" not in own]


def test_a_pod_for_each_container_of_a_manager_with_directories(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.pods.services.CONTAINERS", tmp_path)
    (tmp_path / "prod").mkdir()
    machine.start(
        *("lxc/101/ns", "lxc/102/ns/system.slice/nginx.service", "lxc.monitor/101", "lxc.payload.web"),
        *("default/redis", "nomad/share/8f1b.web", "slurm/uid_7/job_7/step_0", "ecs/8f1b/odd", "nomad/odd"),
        *(f"lab/{OTHER}", "docker", "prod/redis", "system.slice/slurmstepd.scope/job_5/odd"),
        *(f"system.slice/slurmstepd.scope/job_5/step_0/{of}" for of in ("user/task_0", "slurm")),
        f"system.slice/containerd.service/system.slice:nerdctl:{ID}",
        *("system.slice/containerd.service", "k8s.io"),
    )
    with machine.source(runtimes=Runtimes({})) as found:
        assert found.poll().problems == []
        may_go = {name: not pod.taken_critical for name, pod in pods(found).items()}
        may = ("lxc/101", "lxc/102", "cgroup/lxc.payload.web", "nomad/8f1b.web", "slurm/7.0", "slurm/5.0")
        may += ("containerd/redis", "containerd/redis~2", "cgroup/odd", "cgroup/odd~2", "cgroup/lab")
        assert (
            may_go
            == dict.fromkeys(may, True)
            | {
                "lxc/monitor-101": False,  # what watches it
                "slurm/monitor-5.0": False,  # slurmstepd's own
                f"nerdctl/{ID[:12]}": True,  # in its runtime's unit, by runc without systemd
                "cgroup/k8s.io": True,  # a process is in the directory itself: one pod, with all below it
            }
        )
        machine.start(f"system.slice/containerd.service/kubepods-burstable.slice:cri-containerd:{OTHER}")
        until(lambda: f"cri-containerd/{OTHER[:12]}" in pods(found) or found.poll() is None, "no new container")


def test_a_users_service_does_not_split_itself_into_containers(machine: Machine) -> None:
    container = f"system.slice:nerdctl:{ID}"
    machine.start(f"{MANAGER}/app.slice/containerd.service/{container}", f"system.slice/web.service/{container}")
    os.chown(machine.start(f"system.slice/containerd.service/a.slice:b:{ID}").parent, USER, USER)
    assert {name: not pod.taken_critical for name, pod in machine.looked().items()} == {
        "user-1000/containerd.service": True,
        "system/web.service": True,
        "system/containerd.service": False,
    }
