"""A directory named kubepods is the kubelet's only where root alone can have made it, and where it is to be."""

import os
import subprocess
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from monitor.owner import distrust
from monitor.pods.cgroup_tree import believed, candidate_paths, holds_pods, kubepods_of
from monitor.pods.model import Change
from tests.pods.manifest_folder import Place, _names, manifest, polled
from tests.pods.test_claims import NOBODY, OTHER, UID

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="not root: cannot make a cgroup, or be another user"),
    pytest.mark.oldest,
]


def delegated(path: Path) -> Path:
    """A cgroup of user 65534, as a user manager or rootless podman has one."""
    os.chown(cgroupfs.make(path), NOBODY, NOBODY)
    return path


def as_user(*paths: Path) -> None:
    """The user makes these directories."""
    subprocess.run(["mkdir", "-p", *paths], user=NOBODY, group=NOBODY, extra_groups=[], check=True)


def uids(change: Change) -> list[str]:
    return [found.pod.uid for found in change.updated]


@pytest.mark.live
@pytest.mark.parametrize("where", ["kubepods", "user.slice/user-65534.slice/kubepods"])
def test_a_users_own_kubepods_is_none(node: Path, where: str) -> None:
    """Nearest to the root was enough: its processes became pods, and the kubelet's own were not looked for."""
    hierarchy = cgroupfs.detect()
    fake = node / where
    delegated(fake if fake.parent == node else fake.parent)
    as_user(fake / f"besteffort/pod{UID}/main")
    change = polled("cgroups", node)
    assert change.updated == []
    [problem] = change.problems
    assert "no kubepods cgroup" in problem
    assert (f"{fake} belongs to user {NOBODY}" in problem) == (fake.parent == node)
    assert kubepods_of(hierarchy, node) is None
    assert believed(hierarchy, fake / f"besteffort/pod{UID}") is None
    # The kubelet's own is found beside it.
    if fake.parent != node:
        cgroupfs.make(node / f"kubepods/burstable/pod{OTHER}/main")
        assert uids(polled("cgroups", node)) == [OTHER]


@pytest.mark.live
def test_many_directories_of_a_user_do_not_hide_the_kubelets(node: Path, folder: Path) -> None:
    """More than 4,096 directories were enough. outrace does not descend into directories of an ordinary user now."""
    home = delegated(node / "home")
    as_user(*(home / f"d{i}" for i in range(4100)))
    cgroupfs.make(node / f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID.replace('-', '_')}.slice")
    manifest(folder, "web", uid=UID)
    assert uids(polled(folder, node)) == [UID]
    assert uids(polled("cgroups", node, cgroup_root="/kubelet")) == [UID]


@pytest.mark.live
@pytest.mark.parametrize("wrong", ["owner", "mode", "above"])
def test_others_may_not_write_in_it_nor_above(node: Path, wrong: str) -> None:
    kubepods = node / "kubepods"
    cgroupfs.make(kubepods / f"burstable/pod{UID}/main")
    assert uids(polled("cgroups", node)) == [UID]
    changed = node if wrong == "above" else kubepods
    if wrong == "owner":
        os.chown(changed, NOBODY, -1)
    else:
        changed.chmod(0o775)
    change = polled("cgroups", node)
    assert change.updated == []
    assert f"({changed} " in change.problems[0]
    assert "not believed to be the kubelet's" in change.problems[0]


@pytest.mark.live
def test_a_class_directory_of_another_is_passed_over(node: Path) -> None:
    cgroupfs.make(node / f"kubepods/besteffort/pod{UID}/main")
    cgroupfs.make(node / f"kubepods/burstable/pod{OTHER}/main")
    os.chown(node / "kubepods/besteffort", NOBODY, -1)
    assert uids(polled("cgroups", node)) == [OTHER]


@pytest.mark.live
def test_a_users_kubepods_does_not_protect_the_pod_it_is_made_in(node: Path, folder: Path) -> None:
    """Its annotation was refused: the pod of a user that made one directory was never evicted."""
    pod = delegated(node / "app")
    manifest(folder, "app", pod)
    assert uids(polled(folder, node)) == ["uid-app"]
    as_user(pod / f"kubepods/pod{UID}")
    change = polled(folder, node)
    assert (uids(change), change.problems) == (["uid-app"], [])
    assert not holds_pods(cgroupfs.detect(), pod)


def test_where_the_kubelet_puts_it(tmp_path: Path) -> None:
    root = tmp_path
    assert candidate_paths(root, root) == [root / "kubepods", root / "kubepods.slice"]
    assert root / "lab.slice/lab-k_8s.slice/lab-k_8s-kubepods.slice" in candidate_paths(root, root, "/lab/k-8s")
    assert root / "lab/k-8s/kubepods" in candidate_paths(root, root, "/lab/k-8s")
    # As a directory is called, too: docker/ID/kubelet.slice/kubelet-kubepods.slice.
    assert root / "docker/x/kubelet.slice/kubelet-kubepods.slice" in candidate_paths(
        root, root, "docker/x/kubelet.slice"
    )
    # Only below the node, or the node itself.
    node = root / "lab" / "kubepods"
    assert candidate_paths(node, root)[0] == node
    assert all(path.is_relative_to(node) for path in candidate_paths(node, root, "/other"))


def test_elsewhere_it_is_believed_if_it_holds_a_pod_that_is_known(place: Place, folder: Path) -> None:
    name = f"kubelet-kubepods-pod{UID.replace('-', '_')}.slice"
    pod = place.cgroup(f"docker/abc/kubelet.slice/kubelet-kubepods.slice/{name}")

    def look(where: str | Path, cgroup_root: str = "") -> Change:
        return polled(where, None, place.hierarchy, cgroup_root=cgroup_root)

    change = look("cgroups")
    assert change.updated == []
    assert f"{pod.parent} is not where the kubelet puts it by default" in change.problems[0]
    assert "cgroupRoot in --kubelet-config" in change.problems[0]
    assert uids(look("cgroups", "/docker/abc/kubelet.slice")) == [UID]
    manifest(folder, "other", uid=OTHER)
    assert look(folder).updated == []
    manifest(folder, "web", uid=UID)
    change = look(folder)
    assert uids(change) == [UID]
    kube = believed(place.hierarchy, change.updated[0].cgroup)
    assert (place.hierarchy.root / kube.root, kube.uid) == (pod.parent, UID)


def test_what_is_not_there_or_not_below_is_not_believed(tmp_path: Path) -> None:
    assert "No such file" in distrust(tmp_path / "gone", tmp_path)
    assert "is not below" in distrust(Path("/"), tmp_path)


@pytest.mark.parametrize(
    ("of", "source", "found"),
    [("e2" * 16, None, False), ("e2" * 16, "file", True), (UID, "file", False)],
    ids=["hash", "hash of a pod that is never evicted", "uid"],
)
def test_a_hash_leads_to_its_cgroup_only_for_a_static_pod(
    node: Path, folder: Path, of: str, source: str | None, found: bool
) -> None:
    """Any pod whose annotations named it took another's cgroup for its own, with its own low priority."""
    cgroupfs.make(node / f"kubepods/burstable/pod{of}/main")
    notes = {"kubernetes.io/config.hash": of} | ({"kubernetes.io/config.source": source} if source else {})
    manifest(folder, "a", uid=OTHER, **notes)
    assert bool(polled(folder, node).updated) == found


@pytest.mark.parametrize("above", range(3))
def test_a_cgroup_of_many_pods_is_no_pod(place: Place, folder: Path, above: int) -> None:
    burstable = Path("kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice")
    pod = burstable / "kubelet-kubepods-burstable-podabc.slice"
    name = str(pod.parents[above])
    place.cgroup(str(pod))
    manifest(folder, "a", name)
    manifest(folder, "b", str(pod), uid="abc")
    change = polled(folder, None, place.hierarchy)
    assert _names(change) == ["b"]
    [problem] = change.problems
    assert f"a.json: document 1: metadata.annotations[outrace/cgroup]: cgroup '{name}' holds the pods of" in problem


@pytest.mark.parametrize("spec", ["cgroups", "manifests"])
def test_only_the_nodes_own_kubepods_is_searched(place: Place, spec: str) -> None:
    stranger = place.cgroup("kubepods/besteffort/podstranger").parent.parent
    node = place.cgroup("lab/node")
    if spec == "manifests":
        spec = f"manifests:{place.folder}"
        manifest(place.folder, "s", uid="stranger")
    change = polled(spec, node, place.hierarchy)
    assert (change.updated, len(change.problems)) == ([], 1)
    for whole in (None, stranger):  # the machine as the node, and kubepods
        assert uids(polled(spec, whole, place.hierarchy)) == ["stranger"]
    own = place.cgroup("lab/node/kubepods/besteffort/podstranger")
    assert [found.cgroup for found in polled(spec, node, place.hierarchy).updated] == [own]


@pytest.mark.live
def test_what_is_left_of_a_former_qos_class_is_not_the_pod(node: Path, tmp_path: Path) -> None:
    """A static pod with a uid of its own became Burstable: measured by the empty directory it was never ranked."""
    now = cgroupfs.make(node / f"kubepods/burstable/pod{UID}/main").parent
    cgroupfs.make(node / f"kubepods/besteffort/pod{UID}")
    manifest(tmp_path, "web", uid=UID)
    assert [found.cgroup for found in polled(tmp_path, node).updated] == [now]
