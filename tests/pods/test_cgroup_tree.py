"""The kubepods tree: the path parser, both drivers on v1 and v2 layouts, and pods made of cgroups alone."""

import dataclasses
import os
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.kernel import cgroupfs
from monitor.link.messages import PodSeen
from monitor.pods import cgroup_tree
from monitor.pods.cgroup_tree import KubePath, kubepods_of, parse
from monitor.pods.model import FoundPod, Within
from monitor.pods.tree import TreeSource
from monitor.policy.layout import SINGLE_DISK
from monitor.policy.pods import Pod, pod_from_object
from monitor.policy.ranking import candidate, memory_key
from monitor.policy.releases import ERAS, era
from monitor.policy.resources import pod_request
from monitor.policy.signals import MEMORY, PID
from monitor.policy.stats import PodStats
from monitor.policy.victims import rank_pods
from monitor.side.pod_watch import pod_message
from tests.pods.manifest_folder import Place
from tests.pods.unit_tree import Machine

UID = "5c2b2da2-119f-4fa8-8801-c79f0fa869aa"
SLICE = UID.replace("-", "_")
CID = "46b4aeed75e56ab25c5594354174633fcf23ad7ea81cedc27c339fdc2a300e95"


def limited(place: Place, name: str, mib: int) -> Path:
    path = place.cgroup(name)
    (path / "memory.max").write_text(f"{mib << 20}\n")
    return path


PATHS = [
    ("kubepods", KubePath("kubepods")),
    ("/kubepods/burstable", KubePath("kubepods", "Burstable")),
    (f"/kubepods/besteffort/pod{UID}", KubePath("kubepods", "BestEffort", UID)),
    (f"/kubepods/pod{UID}/{CID}", KubePath("kubepods", "Guaranteed", UID)),
    (f"/kubepods/burstable/pod{UID}/crio-conmon-{CID}", KubePath("kubepods", "Burstable", UID)),
    # --cgroup-root=/lab/k8s, and a process below the container's own cgroup
    (f"/lab/k8s/kubepods/pod{UID}/{CID}/init.scope", KubePath("lab/k8s/kubepods", "Guaranteed", UID)),
    (
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{CID}.scope",
        KubePath("kubepods.slice", "Burstable", UID),
    ),
    (
        f"/kubepods.slice/kubepods-pod{SLICE}.slice/crio-{CID}.scope/container",
        KubePath("kubepods.slice", "Guaranteed", UID),
    ),
    (
        f"/docker/{CID}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
        f"kubelet-kubepods-besteffort-pod{SLICE}.slice/docker-{CID}.scope",
        KubePath(f"docker/{CID}/kubelet.slice/kubelet-kubepods.slice", "BestEffort", UID),
    ),
    # A cluster inside a pod belongs to the pod outside.
    (f"/kubepods/burstable/pod{UID}/{CID}/kubelet/kubepods/podinner", KubePath("kubepods", "Burstable", UID)),
]
NOT_PATHS = [
    *("", "/", "/system.slice/ssh.service", "/kubepods/burstable/other", "/mykubepods/podx", "/kubepods/pod"),
    *("/kubepods.slice/kubepods-burstable/podx", "/kubepods.slice/other-podx.slice"),
]


@pytest.mark.parametrize(("path", "expected"), [*PATHS, *((path, None) for path in NOT_PATHS)])
def test_parse(path: str, expected: KubePath | None) -> None:
    assert parse(path) == expected


@pytest.mark.parametrize("name", [CID, f"crio-{CID}", f"cri-containerd-{CID}.scope", f"docker-{CID}.scope"])
def test_a_containers_id(name: str) -> None:
    assert cgroup_tree.container_id(name) == CID
    assert cgroup_tree.container_id(f"crio-conmon-{name}") is None


@given(
    st.lists(
        st.sampled_from(
            ["kubepods", "kubepods.slice", "burstable", "kubepods-burstable.slice", "podx", "pod", "crio-", ".scope"]
        )
        | st.text(max_size=8)
    ).map("/".join)
)
def test_parse_takes_any_text(path: str) -> None:
    kube = parse(path)
    assert kube is None or (kube.uid is None or kube.qos is not None)


def test_the_systemd_tree(place: Place) -> None:
    above = "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
    name = f"{above}/kubelet-kubepods-burstable-pod{SLICE}.slice"
    pod, scope = place.cgroup(name), place.cgroup(f"{name}/cri-containerd-{CID}.scope")
    place.cgroup(f"{name}/crio-conmon-{CID}.scope")
    base, burstable = pod.parents[1], pod.parent
    assert kubepods_of(place.hierarchy, place.hierarchy.root, "/kubelet") == base
    assert cgroup_tree.class_dirs(base) == [base, burstable]
    assert list(cgroup_tree.pods_in(base)) == [cgroup_tree.PodDir(UID, "Burstable", pod)]
    assert cgroup_tree.containers_in(pod) == {CID: scope}


def test_of_two_drivers_the_one_with_pods_counts(place: Place) -> None:
    place.cgroup("kubepods/burstable")
    pod = place.cgroup("kubepods.slice/kubepods-podabc.slice")
    assert kubepods_of(place.hierarchy, place.hierarchy.root) == pod.parent


def test_no_kubepods_is_reported_and_waited_for(place: Place) -> None:
    source = TreeSource(Within(place.hierarchy))
    change = source.poll()
    assert (change.updated, change.removed) == ([], [])
    assert len(change.problems) == 1
    assert "no kubepods cgroup" in change.problems[0]
    assert "--pods manifests:DIR" in change.problems[0]
    assert source.poll().problems == []  # reported once
    pod = limited(place, f"kubepods/pod{UID}", 64)
    [found] = source.poll().updated
    assert found.cgroup == pod
    source.close()


def test_pods_made_of_cgroups(place: Place) -> None:
    name = f"kubepods/pod{UID}"
    pod, a, b = (limited(place, f"{name}{inner}", mib) for inner, mib in (("", 96), ("/aaa", 64), ("/bbb", 32)))
    source = TreeSource(Within(place.hierarchy))
    [found] = source.poll().updated
    known = (UID, "", UID, None, False, 96 << 20, "Guaranteed", False, 30, str(pod))
    assert pod_message(found) == PodSeen(*known, containers={"aaa": str(a), "bbb": str(b)})
    # A container more: it is reported again.
    limited(place, f"{name}/ccc", 32)
    [found] = source.poll().updated
    assert sorted(found.containers) == ["aaa", "bbb", "ccc"]
    assert pod_message(found).request == 128 << 20
    source.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: cannot make directories of another user")
def test_a_users_directory_is_no_container_outside_kubepods(place: Place) -> None:
    """In a unit that is delegated to it a user makes any number of directories, of any name."""
    name = f"kubepods-pod{SLICE}.slice:cri-containerd:{CID}"
    of_runtime, of_user = (place.cgroup(f"system.slice/{unit}.service/{name}") for unit in ("containerd", "runner"))
    os.chown(of_user.parent, 65534, 65534)
    found = cgroup_tree.outside(place.hierarchy.root)
    assert (found[CID], found[f"kubepods-pod{SLICE}.slice"]) == (of_runtime, of_runtime)


# Pods known by their cgroups alone: what is not known is never taken for 0, and a static pod is critical.

STATIC = "e228a63249ca746e753e7532f763b21a"


def only(machine: Machine) -> FoundPod:
    """The one pod that a new look finds."""
    with closing(TreeSource(Within(machine.hierarchy, machine.path))) as source:
        [found] = source.poll().updated
        return found


def critical(found: FoundPod) -> bool:
    """What the hot process is sent; the same by the policy of every era."""
    known = {bool(pod_message(found, era(name)).critical) for name in ERAS}
    assert len(known) == 1
    return known.pop()


@pytest.mark.live
@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (f"burstable/pod{UID}", False),
        # The uid of a static pod is the hash of its configuration, not one of the API server's.
        *((f"besteffort/pod{uid}", True) for uid in (STATIC, "abc", f"{UID}0", UID[1:])),
    ],
)
def test_who_is_critical(machine: Machine, place: str, expected: bool) -> None:
    cgroupfs.make(machine.path / "kubepods" / place / "main")
    found = only(machine)
    assert critical(found) == expected
    message = pod_message(found)
    assert (message.priority, message.spec_known, message.request) == (None, False, 0)


def pod(name: str, known: bool, priority: int | None) -> Pod:
    found = pod_from_object({"metadata": {"name": name, "uid": name}, "spec": {"priority": priority, "containers": []}})
    return dataclasses.replace(found, spec_known=known)


@given(st.integers(-(2**31), 10**9), st.sampled_from([MEMORY, PID, "nodefs.available"]))
def test_an_unknown_priority_ranks_behind_every_known_one(priority: int, signal: str) -> None:
    """It was taken for 0, before every pod of a positive priority."""
    pods = [pod("a-unknown", False, None), pod("known", True, priority)]
    for rules in (era("kubelet-1.36"), era("kubelet-1.17")):
        figures = {p.uid: PodStats({"memory": {"workingSetBytes": 7}}) for p in pods}
        order = rank_pods(signal, pods, figures, SINGLE_DISK, rules)
        assert [one.pod.name for one in order] == ["known", "a-unknown"]
    candidates = [candidate(one, pod_request(one, "memory"), 7) for one in pods]
    assert [c.name for c in sorted(candidates, key=memory_key)] == ["known", "a-unknown"]
    assert [c.priority for c in candidates] == [None, priority]
