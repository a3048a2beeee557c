"""Pods from manifests: what is found, what is refused and how that is reported."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from monitor.errors import ConfigError
from monitor.link.messages import PodSeen
from monitor.pods import manifest_files
from monitor.pods.inotify import Watcher
from monitor.pods.model import Change, PodSource
from monitor.pods.source import open_for
from monitor.pods.spec_source import ManifestSource
from monitor.settings.config import RunConfig
from monitor.side.pod_watch import pod_message
from tests.pods.manifest_folder import GI, Place, _names, _pod, _wait, _write, manifest

DATA = Path(__file__).parent.parent / "data" / "pods"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("manifests:/nonexistent", "/nonexistent does not exist; create it"),
        ("manifests:/etc/passwd", "/etc/passwd is not a directory"),
    ],
)
def test_manifests_without_a_directory(place: Place, spec: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as e:
        open_for(RunConfig(pods=spec), place.hierarchy, GI)
    assert "--pods" in str(e.value)
    assert "\n" not in str(e.value)


def test_a_pod_with_an_annotated_cgroup(place: Place, pods: PodSource) -> None:
    place.write("web.yaml", _pod("web", "lab/web"))
    cgroup = place.cgroup("lab/web")
    change = pods.poll()
    assert (change.removed, change.problems) == ([], [])
    [found] = change.updated
    # The only container: the pod's cgroup is its own.
    known = ("uid-web", "default", "web", 7, True, 64 << 20, "Burstable", False, 30, str(cgroup))
    assert pod_message(found) == PodSeen(*known, containers={"main": str(cgroup)})
    assert pods.poll() == Change()


def test_container_annotations_and_their_cgroups_appearing(place: Place, pods: PodSource) -> None:
    cgroup = place.cgroup("web")
    place.write("web.yaml", _pod("web", "/web", **{"outrace/cgroup.main": "web/main"}))
    change = pods.poll()
    assert change.updated[0].containers == {}
    assert len(change.problems) == 1
    assert (
        f"metadata.annotations[outrace/cgroup.main]: no cgroup {cgroup}/main yet, waiting for it" in change.problems[0]
    )
    main = place.cgroup("web/main")
    [found] = _wait(pods).updated
    assert found.containers == {"main": main}


def test_yaml_documents_json_and_lists(place: Place, pods: PodSource) -> None:
    for name in "abcdef":
        place.cgroup(name)
    place.write("1.yaml", _pod("a", "a"), None, _pod("b", "b"))
    place.write("2.json", _pod("c", "c"))
    items = [_pod("d", "d"), {k: v for k, v in _pod("e", "e").items() if k == "metadata"}]
    place.write("3.yml", {"apiVersion": "v1", "kind": "List", "items": items}, _pod("f", "f"))
    for name in (".hidden.yaml", "a.yaml~", "#a.yaml#", ".a.yaml.swp", "notes.txt", "4913"):
        (place.folder / name).write_text("not: a pod")
    (place.folder / "directory.yaml").mkdir()
    (place.folder / "dangling.yaml").symlink_to("nowhere")
    change = pods.poll()
    assert sorted(_names(change)) == list("abcdef")
    assert change.problems == []


def _notes(text: str) -> str:
    return f"kind: Pod\nmetadata: {{name: a, annotations: {{{text}}}}}"


BAD = {
    "kind: [": "document 1: not YAML at line 2: .*; correct the syntax",
    "a: !!int x": "document 1: not YAML at line 1: .*; correct it",
    "a: !!bool x": "document 1: not YAML",
    "a: \x01": "document 1: not YAML: .*control characters|special characters",
    "": "holds no Pod; write one, or remove the file",
    "---\n---\n": "holds no Pod",
    "kind: List\nitems: []": "holds no Pod",
    "text": "document 1: not a Pod but 'text'",
    "[1, 2]": r"document 1: not a Pod but list \[1, 2\]; a manifest is a mapping with kind: Pod",
    "kind: Deployment\napiVersion: apps/v1": "kind: not a v1 Pod but apiVersion 'apps/v1', kind 'Deployment'; give a",
    "metadata: {name: x}": "document 1: kind: not a v1 Pod but apiVersion 'v1', kind nothing",
    "kind: Pod": "document 1: metadata.name: missing; correct the key",
    "kind: Pod\nmetadata: {name: A_b}": "document 1: metadata.name: 'A_b' is not one that Kubernetes allows",
    "kind: Pod\nmetadata: {name: a, uid: ../x}": "document 1: metadata.uid: '../x' is not",
    "kind: Pod\nmetadata: {name: a, uid: abc}": "metadata.uid: no cgroup of pod abc under any kubepods yet",
    _notes("outrace/cgroup: 1"): r"document 1: metadata.annotations.outrace/cgroup: .*quotes",
    _notes("outrace/cgroup: ../.."): r"annotations\[outrace/cgroup\]: cgroup '../..' leads outside",
    _notes("outrace/cgroup: /"): r"annotations\[outrace/cgroup\]: cgroup '/' is not below",
    _notes("outrace/cgroup: ''"): r"annotations\[outrace/cgroup\]: '' is not the name",
    _notes("outrace/cgroup: absent"): r"no cgroup .*/absent yet, waiting for it; create it, or correct",
    json.dumps(_pod("a", "good", "64Mb")): r"spec.containers\[0\].resources.requests.memory: .*; correct the key",
    "&a [*a]": r"document 1: line 1: alias \*a; write out what it stands for",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_bad_manifests_are_one_line_each_and_the_others_still_count(place: Place, pods: PodSource, text: str) -> None:
    place.cgroup("good")
    place.add("other", file="z-other.yaml")
    (place.folder / "bad.yaml").write_text(text)
    change = pods.poll()
    assert _names(change) == ["other"]
    assert len(change.problems) == 1
    [problem] = change.problems
    assert problem.startswith(f"{place.folder}/bad.yaml: ")
    assert "\n" not in problem
    assert len(problem) < 400
    assert re.search(BAD[text], problem), problem
    assert pods.poll().problems == []  # reported once
    assert pods.problems == (problem,)  # and it stands
    assert list(pods.pods) == ["uid-other"]


@pytest.mark.parametrize("name", ["a" * 256 + "/b", "a/" * 3000], ids=["a part", "all"])
def test_a_cgroup_of_a_name_that_no_cgroup_has_is_one_problem(place: Place, pods: PodSource, name: str) -> None:
    place.write("a.yaml", _pod("a", name))
    [problem] = pods.poll().problems
    assert problem.endswith(" yet, waiting for it; create it, or correct the annotation")


def test_a_pod_that_ended_is_not_waited_for(place: Place, pods: PodSource) -> None:
    place.write("a.yaml", {**_pod("a", "a"), "status": {"phase": "Failed", "reason": "Evicted"}})
    assert pods.poll() == Change()


def test_a_bad_document_leaves_the_good_ones_of_its_file(place: Place, pods: PodSource) -> None:
    place.cgroup("a")
    place.cgroup("c")
    place.write("all.yaml", _pod("a", "a"), {"kind": "Service"}, _pod("c", "c"))
    change = pods.poll()
    assert _names(change) == ["a", "c"]
    assert len(change.problems) == 1
    assert ": document 2: kind: not a v1 Pod" in change.problems[0]


def test_two_pods_may_not_share(place: Place, pods: PodSource) -> None:
    place.cgroup("a/inner")
    place.cgroup("b")
    place.add("a", file="1.yaml")
    place.write("2.yaml", _pod("a", "b"))  # the same uid
    place.write("3.yaml", _pod("c", "a/inner"))  # inside
    place.write("4.yaml", _pod("d", "a"))  # the same
    place.cgroup("e/inner")
    place.write("5.yaml", _pod("e", "e/inner"))
    place.write("6.yaml", _pod("f", "e"))  # around
    change = pods.poll()
    assert _names(change) == ["a", "e"]
    assert len(change.problems) == 4
    assert f"metadata.uid: uid-a is also the pod of {place.folder}/1.yaml: document 1; remove one" in change.problems[0]
    assert all("is shared with the pod of" in p for p in change.problems[1:])


@pytest.mark.parametrize("driver", ["cgroupfs", "systemd"])
def test_without_annotation_the_kubepods_tree_is_searched(place: Place, pods: PodSource, driver: str) -> None:
    manifest(place.folder, "web", uid="11-22")
    assert "no cgroup of pod 11-22 under any kubepods yet" in pods.poll().problems[0]
    name = "kubepods/burstable/pod11-22"
    if driver == "systemd":
        name = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod11_22.slice"
    path = place.cgroup(name)
    [found] = _wait(pods).updated
    assert (found.cgroup, found.containers) == (path, {"main": path})


def test_the_recorded_pods_in_the_recorded_tree(place: Place, pods: PodSource) -> None:
    for line in (DATA / "cgroup-tree-v1.txt").read_text().splitlines():
        place.cgroup(line.split()[0].lstrip("/"))
    (place.folder / "pods.json").write_bytes((DATA / "pods.json").read_bytes())
    change = pods.poll()
    assert change.problems == []
    found = {f.pod.name: f for f in change.updated}
    assert {n: pod_message(f).qos for n, f in found.items()} == {
        "besteffort-node1": "BestEffort",
        "burstable-node1": "Burstable",
        "guaranteed-node1": "Guaranteed",
    }
    main = found["burstable-node1"].containers["main"]  # by the container id in its status
    assert main.name == "3eaf95a1e79615591cdd86c0cd4bf8bc992398d8bdc3adc16272dd15036aaed5"
    assert main.parent == found["burstable-node1"].cgroup
    assert pod_message(found["guaranteed-node1"]).request == 128 << 20
    assert pod_message(found["guaranteed-node1"]).critical  # a static pod
    assert pod_message(found["guaranteed-node1"]).grace_s == 1


def test_manifests_appear_change_and_vanish(place: Place, pods: PodSource) -> None:
    place.cgroup("a")
    place.cgroup("b")
    assert pods.poll() == Change()
    place.add("a")
    assert _names(_wait(pods)) == ["a"]
    place.add("b", file="b.json")
    assert _names(_wait(pods)) == ["b"]
    place.add("a", "96Mi")
    [found] = _wait(pods).updated
    assert pod_message(found).request == 96 << 20
    (place.folder / "a.yaml").rename(place.folder / "c.yaml")
    assert _wait(pods) == Change()  # the same pod in another file
    (place.folder / "c.yaml").unlink()
    assert _wait(pods).removed == ["uid-a"]


def test_a_change_in_place_of_the_same_size_is_seen(place: Place, pods: PodSource) -> None:
    place.cgroup("a")
    path = place.folder / "a.yaml"
    path.write_text(json.dumps(_pod("a", "a", "11Mi")))
    os.utime(path, (1_700_000_000, 1_700_000_000))
    pods.poll()
    path.write_text(json.dumps(_pod("a", "a", "22Mi")))
    os.utime(path, (1_700_000_000, 1_700_000_000))
    [found] = _wait(pods).updated
    assert pod_message(found).request == 22 << 20


def test_unchanged_files_are_not_parsed_again(place: Place, pods: PodSource, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    real = manifest_files.parse
    monkeypatch.setattr(
        manifest_files, "parse", lambda name, data: parsed.append(os.path.basename(name)) or real(name, data)
    )
    monkeypatch.setattr(manifest_files, "_TICK_NS", 1 << 62)  # all that was written is young, however slow this is
    for name in "abc":
        place.add(name)
        os.utime(place.folder / f"{name}.yaml", (1_700_000_000, 1_700_000_000))
    # What is so young may change within a tick of its times.
    assert manifest_files.read(place.folder / "a.yaml").stamp == ()
    parsed.clear()
    monkeypatch.setattr(manifest_files, "_TICK_NS", -1)  # and all is old
    pods.poll()
    assert sorted(parsed) == ["a.yaml", "b.yaml", "c.yaml"]
    parsed.clear()
    place.add("b", "1Gi")
    assert _names(_wait(pods)) == ["b"]
    assert set(parsed) == {"b.yaml"}


def test_a_file_that_breaks_keeps_its_pod_until_it_is_mended_or_removed(place: Place, pods: PodSource) -> None:
    place.add("a")
    assert _names(pods.poll()) == ["a"]
    (place.folder / "a.yaml").write_text("kind: [")
    change = _wait(pods)
    assert (change.updated, change.removed) == ([], [])
    assert "correct the syntax (still used as it was: default/a)" in change.problems[0]
    place.add("a", "1Gi")
    assert _names(_wait(pods)) == ["a"]
    (place.folder / "a.yaml").write_text("")
    _wait(pods)
    (place.folder / "a.yaml").unlink()
    assert _wait(pods).removed == ["uid-a"]


def test_a_cgroup_is_awaited_lost_and_found_again(place: Place, pods: PodSource) -> None:
    place.write("a.yaml", _pod("a", "deep/down/a"))
    assert len(pods.poll().problems) == 1
    cgroup = place.cgroup("deep/down/a")
    [found] = _wait(pods).updated
    assert found.cgroup == cgroup
    cgroup.rename(place.hierarchy.root.parent / "gone")
    change = _wait(pods)
    assert change.removed == ["uid-a"]
    assert "no cgroup" in change.problems[0]
    place.cgroup("deep/down/a")
    [again] = _wait(pods).updated
    assert again.cgroup_ids != found.cgroup_ids


def test_what_appears_between_a_scan_and_its_watches_is_not_missed(
    place: Place, pods: PodSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write("a.yaml", _pod("a", "a"))
    watch_only = Watcher.watch_only

    def late(self: Watcher, wanted: dict[Path, int]) -> bool:
        place.cgroup("a")  # just before its directory is watched, just after it was looked for
        return watch_only(self, wanted)

    monkeypatch.setattr(Watcher, "watch_only", late)
    pods.poll()
    assert pods.due_s() <= 0
    assert _names(pods.poll()) == ["a"]


def test_a_pod_is_looked_at_again_when_something_happened_to_it_and_each_minute(
    place: Place, pods: PodSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    find = ManifestSource._find
    monkeypatch.setattr(
        ManifestSource, "_find", lambda self, one, scan: looked.append(one.pod.name) or find(self, one, scan)
    )

    def looks() -> list[str]:
        pods.poll()
        pods.poll()  # what is watched anew is looked at once more
        found = sorted(set(looked))
        looked.clear()
        return found

    for name in ("a", "b"):
        place.add(name)
    assert looks() == ["a", "b"]
    place.add("c")
    assert looks() == ["c"]
    shutil.rmtree(place.hierarchy.root / "a")
    place.cgroup("a")
    place.add("b", "3Gi")
    assert looks() == ["a", "b"]
    monkeypatch.setattr(pods, "_until_s", 0.0)
    place.cgroup("d")
    assert looks() == ["a", "b", "c"]


def test_the_kubelets_directory_of_an_annotated_pod_is_seen_when_it_comes(place: Place, pods: PodSource) -> None:
    place.write("a.yaml", _pod("a", "own"))
    for name in ("kubepods", "own", "kubepods/burstable", "kubepods/burstable/poduid-a"):
        place.cgroup(name)
        for _ in range(3):
            pods.poll()
    assert pods.pods["uid-a"].cgroup == place.hierarchy.root / "kubepods/burstable/poduid-a"


def test_linked_files_as_a_mounted_config_map_has_them(place: Place, pods: PodSource) -> None:
    place.cgroup("a")
    for version, memory in (("..v1", "1Gi"), ("..v2", "2Gi")):
        (place.folder / version).mkdir()
        _write(place.folder / version / "a.yaml", _pod("a", "a", memory))
    (place.folder / "..data").symlink_to("..v1")
    (place.folder / "a.yaml").symlink_to("..data/a.yaml")
    assert pod_message(pods.poll().updated[0]).request == GI
    (place.folder / "..new").symlink_to("..v2")
    (place.folder / "..new").rename(place.folder / "..data")
    assert pod_message(_wait(pods).updated[0]).request == 2 * GI


def test_the_directory_itself_goes_and_comes_back(place: Place, pods: PodSource) -> None:
    place.add("a")
    pods.poll()
    place.folder.rename(place.folder.with_name("away"))
    change = _wait(pods)
    assert change.removed == []
    assert "its last manifests stay in use until it is back" in change.problems[0]
    place.folder.mkdir()
    assert pods.poll().removed == ["uid-a"]  # no event announces it: polls look
    place.add("a")
    assert _names(_wait(pods)) == ["a"]


def test_without_inotify_polls_alone_see_everything(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as refused:
        refused.setattr(os, "O_CLOEXEC", -1)  # a flag that inotify_init1 does not know
        blind = open_for(RunConfig(pods=f"manifests:{place.folder}"), place.hierarchy, GI)
    assert blind.fileno() is None
    assert blind.poll() == Change()
    place.write("a.yaml", _pod("a", "a"))
    assert len(blind.poll().problems) == 1
    cgroup = place.cgroup("a")
    assert _names(blind.poll()) == ["a"]
    path = place.folder / "a.yaml"
    for memory in ("11Mi", "22Mi"):  # the same size at the same time: younger than the clock can show
        path.write_text(json.dumps(_pod("a", "a", memory)))
        os.utime(path, (4_000_000_000, 4_000_000_000))
        [found] = blind.poll().updated
        assert found.pod.containers[0].requests["memory"].value == int(memory[:2]) << 20
    cgroup.rename(place.hierarchy.root.parent / "gone")
    assert blind.poll().removed == ["uid-a"]
    blind.close()
