"""What became of a change, and when it is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from monitor.actions.changes import FOREIGN, RESTORED, UNCHANGED, UNSEEN, VANISHED, Change, undone, way_back


@pytest.mark.parametrize(
    ("top", "fate"),
    [
        ({"cgroup.procs", "release_agent"}, VANISHED),
        ({"cgroup.procs"}, UNSEEN),
        ({"cgroup.procs", "cgroup.controllers"}, VANISHED),
        ({"cgroup.procs", "cgroup.controllers", "cgroup.events"}, UNSEEN),
    ],
    ids=["v1", "v1 in a cgroup namespace", "v2", "v2 in a cgroup namespace"],
)
def test_what_a_cgroup_namespace_hides_is_not_gone(tmp_path: Path, top: set[str], fate: str) -> None:
    """Directories stand for what is mounted there: the parent of the pod is not in it either."""
    mount = tmp_path / "mount"
    (mount / "kubepods").mkdir(parents=True)
    for name in top:
        (mount / name).touch()
    (mount / "kubepods/cgroup.procs").touch()
    for below, expected in (("kubepods/besteffort/pod", fate), ("kubepods/pod", VANISHED)):
        assert undone(Change(str(mount / below), "memory.max", "inode 1", "max", ("1",), "uid", "hold")) == expected


@pytest.mark.parametrize(("fate", "below"), [(RESTORED, 2), (UNCHANGED, 2), (FOREIGN, 0), (VANISHED, 0), (UNSEEN, 0)])
def test_a_change_is_over_when_each_cgroup_that_inherited_it_has_its_oom_killer(
    tmp_path: Path, fate: str, below: int
) -> None:
    files = [tmp_path / name / "memory.oom_control" for name in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.write_text("oom_kill_disable 1\n")
    change = Change(str(tmp_path), "memory.oom_control", "inode 1", "0", ("1",), "uid", "hold")
    steps = way_back(change, lambda _: fate)
    for restored in range(below + 1):
        assert next(steps) == fate
        assert sum(file.read_text()[0] == "0" for file in files) == restored
    assert next(steps, None) is None
