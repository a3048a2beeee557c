"""The journal of changes: what is changed in the kernel comes back exactly, wherever a process was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.actions.changes import (
    FOREIGN,
    RESTORED,
    UNCHANGED,
    UNSEEN,
    VANISHED,
    Change,
    ChangeJournal,
    identity_of,
    undo_left,
)
from monitor.errors import MonitorError
from monitor.kernel import cgroupfs
from tests import live
from tests.filesystems import Mounts

MIB = 1 << 20
pytestmark = [pytest.mark.kernel, pytest.mark.oldest]
FILE = "memory.max" if cgroupfs.detect().version == 2 else "memory.limit_in_bytes"


@pytest.fixture
def pod() -> Iterator[Path]:
    with live.cgroup("changes") as path:
        yield cgroupfs.make(path / "pod")


@pytest.fixture
def journal(tmp_path: Path) -> ChangeJournal:
    return ChangeJournal(tmp_path)


def value(path: Path) -> str:
    return (path / FILE).read_text().strip()


def capped(journal: ChangeJournal, pod: Path, mib: int = 32) -> Change:
    return journal.change(pod, FILE, str(mib * MIB), "uid", "test")


def test_a_change_comes_back_exactly(journal: ChangeJournal, pod: Path) -> None:
    before = value(pod)
    made = capped(journal, pod)
    assert value(pod) == str(32 * MIB)
    assert journal.is_in_force(made)
    assert ChangeJournal(journal.path.parent).load() == [made]
    assert journal.undo(made) == RESTORED
    assert value(pod) == before
    assert journal.load() == []
    assert not journal.is_in_force(made)


def test_of_two_changes_the_first_value_comes_back(journal: ChangeJournal, pod: Path) -> None:
    (pod / FILE).write_text(str(96 * MIB))
    capped(journal, pod)
    made = capped(journal, pod, 48)
    assert (made.old, made.written) == (str(96 * MIB), (str(32 * MIB), str(48 * MIB)))
    assert journal.undo_all() == [(made, RESTORED)]
    assert value(pod) == str(96 * MIB)


def test_what_somebody_else_wrote_since_stays(journal: ChangeJournal, pod: Path) -> None:
    made = capped(journal, pod)
    (pod / FILE).write_text(str(64 * MIB))  # a resize in place
    assert journal.undo(made) == FOREIGN
    assert value(pod) == str(64 * MIB)
    assert journal.load() == []


def test_a_cgroup_made_anew_under_the_same_path_is_not_touched(journal: ChangeJournal, pod: Path) -> None:
    made = capped(journal, pod)
    pod.rmdir()
    cgroupfs.make(pod)
    (pod / FILE).write_text(made.written[0])
    assert not journal.is_in_force(made)
    assert journal.undo(made) == VANISHED
    assert value(pod) == made.written[0]
    with pytest.raises(FileNotFoundError, match="another one"):
        journal.change(pod, FILE, str(MIB), "uid", "test", identity=made.identity)
    assert journal.load() == []


def test_a_cgroup_that_is_gone_is_forgotten(journal: ChangeJournal, pod: Path) -> None:
    made = capped(journal, pod)
    pod.rmdir()
    assert journal.undo_all() == [(made, VANISHED)]
    assert journal.load() == []


def test_what_cannot_be_seen_from_here_stays_in_the_journal(journal: ChangeJournal, pod: Path, tmp_path: Path) -> None:
    """Another mount namespace has its cgroups elsewhere: that is no cgroup that is gone."""
    made = replace(capped(journal, pod), path=str(tmp_path / "not mounted/kubepods/pod"))
    assert journal.undo(made) == UNSEEN
    assert len(journal.load()) == 1


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
def test_what_a_cgroup_namespace_hides_is_not_gone(
    journal: ChangeJournal, pod: Path, tmp_path: Path, top: set[str], fate: str
) -> None:
    """Directories stand for what is mounted there: the parent of the pod is not in it either."""
    mount = tmp_path / "mount"
    (mount / "kubepods").mkdir(parents=True)
    for name in top:
        (mount / name).touch()
    (mount / "kubepods/cgroup.procs").touch()
    made = capped(journal, pod)
    assert journal.undo(replace(made, path=str(mount / "kubepods/besteffort/pod"))) == fate
    assert journal.undo(replace(made, path=str(mount / "kubepods/pod"))) == VANISHED


def test_a_half_file_of_a_killed_daemon_is_removed_at_the_next_start(journal: ChangeJournal, pod: Path) -> None:
    made = capped(journal, pod)
    half = journal.path / f".{made.name}.new"
    half.write_text('{"path"')
    undo_left(journal.path.parent, lambda *_, **__: None)
    assert os.listdir(journal.path) == []


def test_an_earlier_boot_is_over(journal: ChangeJournal, pod: Path) -> None:
    made = capped(journal, pod)
    assert journal.undo(replace(made, boot="another")) == VANISHED
    assert value(pod) == made.written[0]


def test_a_value_that_the_kernel_refuses_is_no_change(journal: ChangeJournal, pod: Path) -> None:
    before = value(pod)
    with pytest.raises(OSError, match="Invalid argument"):
        journal.change(pod, FILE, "a lot", "uid", "test")
    assert value(pod) == before
    assert journal.load() == []


def test_a_full_disk_changes_nothing(pod: Path) -> None:
    before = value(pod)
    with Mounts() as mounts:
        state = mounts.tmpfs("state", 64 << 10)
        (state / "changes").mkdir()
        (state / "filler").write_bytes(bytes(os.statvfs(state).f_bavail * os.statvfs(state).f_frsize))
        journal = ChangeJournal(state)
        with pytest.raises(OSError, match="No space"):
            capped(journal, pod)
        assert value(pod) == before
        assert os.listdir(journal.path) == []
        (state / "filler").unlink()
        made = capped(journal, pod)
        assert journal.undo(made) == RESTORED


def test_no_more_than_so_many(tmp_path: Path, pod: Path) -> None:
    journal = ChangeJournal(tmp_path, most=1)
    capped(journal, pod)
    other = cgroupfs.make(pod.parent / "other")
    before = value(other)
    with pytest.raises(MonitorError, match="the most"):
        capped(journal, other)
    assert value(other) == before
    capped(journal, pod, 40)  # not one more


def test_one_file_is_not_changed_without_end(journal: ChangeJournal, pod: Path) -> None:
    for mib in range(8, 16):
        capped(journal, pod, mib)
    with pytest.raises(MonitorError, match="8 times"):
        capped(journal, pod, 16)
    assert journal.undo_all()[0][1] == RESTORED


@pytest.mark.parametrize("length", [0, 1, 40, -1])
def test_a_torn_file_hides_no_other(journal: ChangeJournal, pod: Path, length: int) -> None:
    made = capped(journal, pod)
    whole = (journal.path / made.name).read_bytes()
    (journal.path / ("0" * 32 + ".json")).write_bytes(whole[:length])
    (journal.path / ".half.new").write_bytes(whole[:length])
    problems = list[str]()
    assert journal.undo_all(problems.append) == [(made, RESTORED)]
    assert len(problems) == 1
    assert "remove it" in problems[0]


@pytest.mark.parametrize(
    "wrong", [{"file": "../cgroup.procs"}, {"path": "relative"}, {"written": []}, {"old": 1}, {"more": "x"}]
)
def test_a_file_that_holds_something_else_is_not_acted_on(
    journal: ChangeJournal, pod: Path, wrong: dict[str, object]
) -> None:
    made = capped(journal, pod)
    path = journal.path / made.name
    path.write_text(json.dumps({**json.loads(path.read_text()), **wrong}))
    problems = list[str]()
    assert journal.undo_all(problems.append) == []
    assert len(problems) == 1
    assert value(pod) == made.written[0]


def test_of_a_process_too(journal: ChangeJournal) -> None:
    """oom_score_adj: another process with the same pid has another start time."""
    sleeper = subprocess.Popen(["sleep", "1000"])
    try:
        path = Path(f"/proc/{sleeper.pid}")
        before = (path / "oom_score_adj").read_text().strip()
        made = journal.change(path, "oom_score_adj", "900", "uid", "test")
        assert made.identity == identity_of(path)
        assert journal.undo(made) == RESTORED
        assert (path / "oom_score_adj").read_text().strip() == before
        made = journal.change(path, "oom_score_adj", "900", "uid", "test")
        assert journal.undo(replace(made, identity="started 1")) == VANISHED
        made = journal.change(path, "oom_score_adj", "950", "uid", "test")
    finally:
        sleeper.kill()
        sleeper.wait()
    assert journal.undo(made) == VANISHED


_KILLED = """
import os, signal, sys
from pathlib import Path
from monitor.actions import changes
def end(*_):
    os.kill(os.getpid(), signal.SIGKILL)
when, state, pod, file, value = sys.argv[1:]
journal = changes.ChangeJournal(Path(state))
write, rename, sync = changes._write, os.replace, os.fsync
if when == "half a file":
    changes.os.fsync = end
elif when == "before it has its name":
    changes.os.replace = end
elif when == "between the two":
    changes._write = end
elif when == "after the change":
    changes._write = lambda *a: (write(*a), end())
elif when in ("before it is set back", "after it was set back"):
    made = journal.change(Path(pod), file, value, "uid", "test")
    changes._write = end if when.startswith("before") else lambda *a: (write(*a), end())
    journal.undo(made)
journal.change(Path(pod), file, value, "uid", "test")
"""


@pytest.mark.parametrize(
    ("when", "left"),
    [
        ("half a file", None),
        ("before it has its name", None),
        ("between the two", UNCHANGED),
        ("after the change", RESTORED),
        ("before it is set back", RESTORED),
        ("after it was set back", UNCHANGED),
    ],
)
def test_a_sigkill_at_any_moment_leaves_what_can_be_undone(
    journal: ChangeJournal, pod: Path, when: str, left: str | None
) -> None:
    (pod / FILE).write_text(str(96 * MIB))
    arguments = (when, str(journal.path.parent), str(pod), FILE, str(32 * MIB))
    ended = subprocess.run([sys.executable, "-c", _KILLED, *arguments], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [fate for _, fate in journal.undo_all()] == ([] if left is None else [left])
    assert value(pod) == str(96 * MIB)
    assert journal.load() == []
    made = capped(journal, pod)  # what the dead one left is in nobody's way
    assert journal.undo(made) == RESTORED
