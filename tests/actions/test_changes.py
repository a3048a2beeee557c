"""What became of a change whose cgroup is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from monitor.actions.changes import UNSEEN, VANISHED, Change, undone


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
        assert undone(Change(str(mount / below), "memory.max", "inode 1", "max", ("1",), "uid")) == expected
