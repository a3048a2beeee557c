"""A container in the cgroup of the unit that started it (`podman run --cgroups=split`, as Quadlet has it): the unit is
the pod, with the container's labels. Whose podman is not asked has units like any other.
"""

import os
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.procfs import Process
from monitor.pods import model
from monitor.pods.runtimes import Known, Runtimes, common_labels
from monitor.policy.resources import pod_request
from tests.pods.fake_runtime import podman
from tests.pods.unit_tree import ID, MANAGER, MI, POD, USER, Start, looked, pods, source, write_request
from tests.pods.unit_tree import start as start
from tests.pods.unit_tree import tree as tree
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.newest]
UNIT = "system.slice/web.service"


def listed(**labels: str) -> list[dict[str, object]]:
    """The container, as podman lists it, with labels of outrace's."""
    return [{"Id": ID, "Names": ["/systemd-web"], "Labels": {f"outrace/{key}": text for key, text in labels.items()}}]


def pid_of(path: Path) -> int:
    return int((path / "cgroup.procs").read_text())


@pytest.mark.parametrize("above", ["system.slice", "user.slice/user-0.slice/user@0.service/app.slice"])
def test_the_unit_has_the_containers_labels(
    tree: tuple[Hierarchy, Path], start: Start, tmp_path: Path, above: str
) -> None:
    payload = start(f"{above}/web.service/libpod-payload-{ID}")
    start(f"{above}/web.service/runtime")
    (payload / ("memory.max" if tree[0].version == 2 else "memory.limit_in_bytes")).write_text(str(64 * MI))
    with podman(tmp_path, listed(priority="7", request="24Mi"), {}) as known, source(tree, runtimes=known) as found:
        assert found.poll().problems == []
        (pod,) = pods(found).values()
    assert (pod.name, pod.namespace, pod.priority) == ("web.service", "user-0" if "user" in above else "system", 7)
    assert pod.taken_critical == ""
    assert pod_request(pod, "memory").value == 24 * MI
    assert pod.containers[0].limits["memory"].value == 64 * MI


def test_labels_of_the_container_and_the_tables_names_count(
    tree: tuple[Hierarchy, Path], start: Start, tmp_path: Path
) -> None:
    start(f"{UNIT}/libpod-payload-{ID}")
    with podman(tmp_path, listed(never="true", priority="7"), {}) as known:
        assert looked(tree, runtimes=known)["system/web.service"].taken_critical == "label outrace/never"
        for pattern in ("podman/systemd-web", "system/web*", "web.service"):
            assert looked(tree, {pattern: {"priority": 3}}, runtimes=known)["system/web.service"].priority == 3


def test_until_podman_answers_it_stays(tree: tuple[Hierarchy, Path], start: Start, tmp_path: Path) -> None:
    write_request(tree[0], start(f"{UNIT}/libpod-payload-{ID}"), MI)
    start("system.slice/plain.service")
    with source(tree, runtimes=Runtimes({"podman": str(tmp_path / "none")})) as found:
        (problem,) = found.poll().problems
        known = pods(found)
    assert "podman does not answer" in problem
    assert known["system/web.service"].taken_critical == "its labels, which may forbid it, are not known"
    assert known["system/plain.service"].taken_critical == ""


@pytest.mark.parametrize("shape", ["a unit", "a pod of podman"])
def test_conmon_beside_a_container_does_not_spare_it(
    tree: tuple[Hierarchy, Path], start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """conmon gives itself -1000 (which takes CAP_SYS_RESOURCE, that a machine of tests may not have: the one fake)."""
    if shape == "a unit":
        inside, conmon = start(f"{UNIT}/libpod-payload-{ID}"), start(f"{UNIT}/runtime")
    else:
        slice_ = f"machine.slice/machine-libpod_pod_{POD}.slice"
        inside, conmon = start(f"{slice_}/libpod-{ID}.scope"), start(f"{slice_}/libpod-conmon-{ID}.scope")
    scores = {pid_of(inside): 250, pid_of(conmon): -1000}
    monkeypatch.setattr(Process, "oom_score_adj", lambda self: scores[self.pid])
    with podman(tmp_path, listed(), {}) as known:
        (pod,) = looked(tree, runtimes=known).values()
    assert (pod.taken_critical, pod.priority) == ("", -250)


@pytest.mark.parametrize("unit", [f"{MANAGER}/app.slice/web.service", UNIT], ids=["a user's", "delegated to a user"])
def test_a_user_hides_nothing_behind_a_directory_of_that_name(
    tree: tuple[Hierarchy, Path], start: Start, unit: str
) -> None:
    """Nobody would ever know the labels of such a container. (Rootless podman has others than root's.)"""
    os.chown(start(f"{unit}/libpod-payload-{ID}").parent, USER, USER)
    (pod,) = looked(tree).values()  # no runtime was asked: that would be a problem
    assert (pod.name, pod.taken_critical) == ("web.service", "")


def test_a_container_that_comes_later_is_seen_at_once(
    tree: tuple[Hierarchy, Path], start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """podman pulls its image first. No look at everything comes in time."""
    monkeypatch.setattr(model, "RESCAN_S", 3600.0)
    start(f"{UNIT}/runtime")
    with podman(tmp_path, listed(never="true"), {}) as known, source(tree, runtimes=known) as found:

        def spared() -> str:
            found.poll()
            return pods(found)["system/web.service"].taken_critical

        assert spared() == ""
        until(lambda: (found.poll(), found.due_s())[1] > 1800, "it settles")
        cgroupfs.make(tree[1] / UNIT / "other")  # what the unit makes of its own costs no scan
        before = found._scanned_s
        found.poll()
        assert found._scanned_s == before
        start(f"{UNIT}/libpod-payload-{ID}")
        assert until(spared, "the container") == "label outrace/never"


def test_a_container_without_a_process_yet_is_being_started(
    tree: tuple[Hierarchy, Path], start: Start, tmp_path: Path
) -> None:
    start(f"{UNIT}/runtime")
    cgroupfs.make(tree[1] / UNIT / f"libpod-payload-{ID}")
    with podman(tmp_path, listed(), {}) as known:
        assert "being started" in looked(tree, runtimes=known)["system/web.service"].taken_critical


def test_containers_that_go_together() -> None:
    web, db = {"outrace/priority": "5", "a": "x"}, {"outrace/priority": "5", "outrace/never": "true"}
    assert common_labels([Known("web", web)]) == web
    assert common_labels([Known("web", web), Known("db", db)]) == {**web, **db}
    other = {"outrace/priority": "6", "outrace/never": "false"}
    assert common_labels([Known("db", db), Known("other", other)]) == {
        "outrace/priority": "5 and 6",  # which is no priority: it is not evicted
        "outrace/never": "true",
    }
