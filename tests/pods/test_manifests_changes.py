"""Pods from manifests that come, change and go, and any input whatever."""

import json
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods import manifest_files, source
from monitor.pods.inotify import Watcher
from monitor.pods.model import PodSource
from monitor.pods.source import Change
from monitor.side.pod_watch import pod_message
from tests.pods.manifest_folder import GI, _cgroup, _names, _pod, _wait, _write


def test_manifests_appear_change_and_vanish(folder: Path, hierarchy: Hierarchy, pods: PodSource) -> None:
    _cgroup(hierarchy, "a")
    _cgroup(hierarchy, "b")
    assert pods.poll() == Change()
    _write(folder / "a.yaml", _pod("a", "a"))
    assert _names(_wait(pods)) == ["a"]
    _write(folder / "b.json", _pod("b", "b"))
    assert _names(_wait(pods)) == ["b"]
    _write(folder / "a.yaml", _pod("a", "a", "96Mi"))
    [found] = _wait(pods).updated
    assert pod_message(found).request == 96 << 20
    (folder / "a.yaml").rename(folder / "c.yaml")
    assert _wait(pods) == Change()  # the same pod in another file
    (folder / "c.yaml").unlink()
    assert _wait(pods).removed == ["uid-a"]


def test_a_change_in_place_of_the_same_size_is_seen(folder: Path, hierarchy: Hierarchy, pods: PodSource) -> None:
    _cgroup(hierarchy, "a")
    path = folder / "a.yaml"
    path.write_text(json.dumps(_pod("a", "a", "11Mi")))
    os.utime(path, (1_700_000_000, 1_700_000_000))
    pods.poll()
    path.write_text(json.dumps(_pod("a", "a", "22Mi")))
    os.utime(path, (1_700_000_000, 1_700_000_000))
    [found] = _wait(pods).updated
    assert pod_message(found).request == 22 << 20


def test_unchanged_files_are_not_parsed_again(
    folder: Path, hierarchy: Hierarchy, pods: PodSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    real = manifest_files.read
    monkeypatch.setattr(manifest_files, "read", lambda path: parsed.append(path.name) or real(path))
    for name in "abc":
        _cgroup(hierarchy, name)
        _write(folder / f"{name}.yaml", _pod(name, name))
        os.utime(folder / f"{name}.yaml", (1_700_000_000, 1_700_000_000))
    pods.poll()
    assert sorted(parsed) == ["a.yaml", "b.yaml", "c.yaml"]
    parsed.clear()
    _write(folder / "b.yaml", _pod("b", "b", "1Gi"))
    assert _names(_wait(pods)) == ["b"]
    assert parsed == ["b.yaml"]


def test_a_file_that_breaks_keeps_its_pod_until_it_is_mended_or_removed(
    folder: Path, hierarchy: Hierarchy, pods: PodSource
) -> None:
    _cgroup(hierarchy, "a")
    _write(folder / "a.yaml", _pod("a", "a"))
    assert _names(pods.poll()) == ["a"]
    (folder / "a.yaml").write_text("kind: [")
    change = _wait(pods)
    assert (change.updated, change.removed) == ([], [])
    assert "correct the syntax (still used as it was: default/a)" in change.problems[0]
    _write(folder / "a.yaml", _pod("a", "a", "1Gi"))
    assert _names(_wait(pods)) == ["a"]
    (folder / "a.yaml").write_text("")
    _wait(pods)
    (folder / "a.yaml").unlink()
    assert _wait(pods).removed == ["uid-a"]


def test_a_cgroup_is_awaited_lost_and_found_again(folder: Path, hierarchy: Hierarchy, pods: PodSource) -> None:
    _write(folder / "a.yaml", _pod("a", "deep/down/a"))
    assert len(pods.poll().problems) == 1
    cgroup = _cgroup(hierarchy, "deep/down/a")
    [found] = _wait(pods).updated
    assert found.cgroup == cgroup
    cgroup.rename(hierarchy.root.parent / "gone")
    change = _wait(pods)
    assert change.removed == ["uid-a"]
    assert "no cgroup" in change.problems[0]
    _cgroup(hierarchy, "deep/down/a")
    [again] = _wait(pods).updated
    assert again.cgroup_ids != found.cgroup_ids


def test_what_appears_between_a_scan_and_its_watches_is_not_missed(
    folder: Path, hierarchy: Hierarchy, pods: PodSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(folder / "a.yaml", _pod("a", "a"))
    watch_only = Watcher.watch_only

    def late(self: Watcher, wanted: dict[Path, int]) -> bool:
        _cgroup(hierarchy, "a")  # just before its directory is watched, just after it was looked for
        return watch_only(self, wanted)

    monkeypatch.setattr(Watcher, "watch_only", late)
    assert _names(pods.poll()) == ["a"]


def test_linked_files_as_a_mounted_config_map_has_them(folder: Path, hierarchy: Hierarchy, pods: PodSource) -> None:
    _cgroup(hierarchy, "a")
    for version, memory in (("..v1", "1Gi"), ("..v2", "2Gi")):
        (folder / version).mkdir()
        _write(folder / version / "a.yaml", _pod("a", "a", memory))
    (folder / "..data").symlink_to("..v1")
    (folder / "a.yaml").symlink_to("..data/a.yaml")
    assert pod_message(pods.poll().updated[0]).request == GI
    (folder / "..new").symlink_to("..v2")
    (folder / "..new").rename(folder / "..data")
    assert pod_message(_wait(pods).updated[0]).request == 2 * GI


def test_the_directory_itself_goes_and_comes_back(folder: Path, hierarchy: Hierarchy, pods: PodSource) -> None:
    _cgroup(hierarchy, "a")
    _write(folder / "a.yaml", _pod("a", "a"))
    pods.poll()
    folder.rename(folder.with_name("away"))
    change = _wait(pods)
    assert change.removed == []
    assert "its last manifests stay in use until it is back" in change.problems[0]
    folder.mkdir()
    assert pods.poll().removed == ["uid-a"]  # no event announces it: polls look
    _write(folder / "b.yaml", _pod("a", "a"))
    assert _names(_wait(pods)) == ["a"]


def test_without_inotify_polls_alone_see_everything(
    folder: Path, hierarchy: Hierarchy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watcher, "open", lambda: None)
    blind = source.open_source(f"manifests:{folder}", hierarchy, GI)
    assert blind.fileno() is None
    assert blind.poll() == Change()
    _write(folder / "a.yaml", _pod("a", "a"))
    assert len(blind.poll().problems) == 1
    cgroup = _cgroup(hierarchy, "a")
    assert _names(blind.poll()) == ["a"]
    path = folder / "a.yaml"
    for memory in ("11Mi", "22Mi"):  # the same size at the same time: younger than the clock can show
        path.write_text(json.dumps(_pod("a", "a", memory)))
        os.utime(path, (4_000_000_000, 4_000_000_000))
        [found] = blind.poll().updated
        assert found.pod.containers[0].requests["memory"].value == int(memory[:2]) << 20
    cgroup.rename(hierarchy.root.parent / "gone")
    assert blind.poll().removed == ["uid-a"]
    blind.close()


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


_keys = st.sampled_from(
    ["name", "uid", "namespace", "annotations", "containers", "resources", "requests", "memory", "priority"]
)


_shaped = st.fixed_dictionaries(
    {"kind": st.just("Pod") | _json},
    optional={
        "apiVersion": st.just("v1") | _json,
        "metadata": st.dictionaries(_keys, st.just("a") | _json, max_size=4) | _json,
        "spec": st.dictionaries(_keys, _json | st.lists(st.dictionaries(_keys, _json)), max_size=3) | _json,
        "status": _json | st.fixed_dictionaries({"containerStatuses": _json | st.lists(st.dictionaries(_keys, _json))}),
        "items": _json,
    },
)


def _check(parsed: manifest_files.Parsed) -> None:
    assert parsed.manifests or parsed.problems
    for problem in parsed.problems:
        assert problem.startswith("x.")
        assert len(problem.splitlines()) == 1
        problem.encode()


@given(_shaped | _json | st.fixed_dictionaries({"kind": st.just("List"), "items": st.lists(_shaped | _json)}))
def test_any_object_is_pods_or_problems(value: object) -> None:
    _check(manifest_files.parse("x.json", json.dumps(value).encode()))
    _check(manifest_files.parse("x.yaml", yaml.safe_dump(value).encode()))


_texts = st.text() | st.text("[]{}:,-&*!|>'\"#%@` \nab~1.\t?=<", max_size=30)


@given(st.binary() | _texts.map(lambda text: text.encode(errors="surrogatepass")))
def test_any_bytes_are_pods_or_problems(data: bytes) -> None:
    for name in ("x.yaml", "x.json"):
        parsed = manifest_files.parse(name, data)
        _check(parsed)
