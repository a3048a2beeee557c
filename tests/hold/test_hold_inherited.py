"""What a hold leaves to cgroups and changes that are not its own: those that are made meanwhile, values that the kernel
refused, and cgroups that no path can name.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.actions import changes
from monitor.actions.changes import RESTORED
from monitor.actions.ledger import LEFT, BrakeLedger
from monitor.cli.run import lock
from monitor.hold import pod_brake
from monitor.hold.brakes import HoldBrakes
from monitor.hold.control import HoldControl
from monitor.hold.pod_brake import FREEZE, LIMIT, PendingKills
from monitor.kernel import cgroup_procs, cgroupfs
from monitor.kernel.cgroup_procs import CGROUPS
from monitor.settings.config import RunConfig
from tests import live
from tests.actions.test_ledger import killed_daemon
from tests.commands import run
from tests.filesystems import nested
from tests.hold.braked import HIERARCHY, LIMIT_FILE, MIB, V2, Stand, undo_on

pytestmark = [pytest.mark.kernel, pytest.mark.oldest]
v1 = pytest.mark.skipif(V2, reason="only cgroup v1 has memory.oom_control, and a freezer that SIGKILL waits for")


def oom_killer(path: Path) -> str:
    return (path / "memory.oom_control").read_text().split("\n", 1)[0]


@v1
@pytest.mark.parametrize("killed", [False, True])
def test_a_container_made_during_a_hold_has_its_oom_killer_after_it(held: Stand, killed: bool) -> None:
    """It inherits memory.oom_control 1, and would hang at its own limit for ever."""
    brake = held.brake(LIMIT)
    assert brake.apply(64 * MIB) is not None
    container = cgroupfs.make(held.pod / "c" / "below")
    assert oom_killer(container) == "oom_kill_disable 1"
    if killed:
        (held.pod / "memory.oom_control").write_text("0")  # the last that it wrote
        undo_on(held.state)
    else:
        brake.release()
    assert [oom_killer(path) for path in (held.pod, container.parent, container)] == ["oom_kill_disable 0"] * 3
    assert not held.noted()


@v1
def test_cgroups_that_cannot_be_restored_keep_a_release_noted(held: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    brakes, entry = HoldBrakes(HIERARCHY, held.journal), SimpleNamespace(uid="uid", cgroup=held.pod)
    assert brakes.of(entry).apply(64 * MIB) is not None
    container = cgroupfs.make(held.pod / "c")

    def refuses(_: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patch:
        patch.setattr(changes, "enable_below", refuses)
        brakes.drop("uid")
        assert held.noted()
    assert brakes.due_ns() is not None
    brakes.try_again(0)
    assert oom_killer(container) == "oom_kill_disable 0"
    assert (held.noted(), brakes.due_ns()) == (False, None)


@v1
def test_a_pod_whose_container_has_no_oom_killer_is_frozen_alone(held: Stand) -> None:
    """Its own choice could not be told from what it inherits."""
    container = cgroupfs.make(held.pod / "c")
    (container / "memory.oom_control").write_text("1")
    brake = held.any_brake()
    assert brake.kind == ("" if held.freezer is None else FREEZE)
    brake.apply(64 * MIB)
    brake.close()
    assert oom_killer(container) == "oom_kill_disable 1"


@v1
def test_a_pod_with_many_cgroups_is_looked_through_no_further_than_a_look_may(
    held: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hot thread opens the brake: it listed 5,000 cgroups before it counted them, 68 ms."""
    for number in range(3 * CGROUPS):
        cgroupfs.make(held.pod / f"c{number}")
    reads, is_disabled = list[Path](), changes._is_disabled
    monkeypatch.setattr(changes, "_is_disabled", lambda path: reads.append(path) or is_disabled(path))
    listed, real = list[str](), os.scandir
    monkeypatch.setattr(cgroupfs.os, "scandir", lambda path: listed.append(str(path)) or real(path))
    assert changes.any_disabled(held.pod)
    assert 0 < len(reads) <= CGROUPS
    assert listed == [str(held.pod)]


def test_a_value_that_was_refused_hides_none_that_is_in_force(held: Stand) -> None:
    """v1 refuses a limit with EBUSY, and it is tried again: what is there then is still ours, and comes back."""
    ledger = BrakeLedger("uid", held.journal)
    assert ledger.open(held.pod, LIMIT_FILE) == ""
    file = ledger.files[LIMIT_FILE]
    before = file.read()
    for mib in (64, 32, 48):
        change = ledger.change(LIMIT_FILE, str(mib * MIB))
        assert change is not None
        ledger.changes[LIMIT_FILE] = change
        if mib == 64:
            file.write(str(mib * MIB))
    assert ledger.put_back(LIMIT_FILE) == [(LIMIT_FILE, RESTORED)]
    assert file.read() == before
    ledger.close()


def test_cgroups_deeper_than_a_path_keep_nobody_held(held: Stand) -> None:
    """4,095 bytes are the longest path: a user that nests cgroups could keep every other pod held."""
    brake = held.brake()
    assert brake.apply(64 * MIB) is not None
    with nested(cgroupfs.make(held.node / "other")):
        problems = list[str]()
        assert {outcome for *_, outcome in undo_on(held.state, problems.append)} == {RESTORED}
        assert problems == []
        assert not held.noted()


def test_a_look_at_a_pod_does_not_list_all_cgroups_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hot thread looks ten times a second: of 5,000 cgroups in one it reads 64, and does not list the others."""
    for name in (".", *(f"c{number}" for number in range(1500))):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "cgroup.procs").touch()
    (tmp_path / "c1499" / "cgroup.procs").write_text(f"{os.getpid()}\n0\n")
    assert cgroup_procs.pids_below(tmp_path) == {os.getpid()}
    listed, scandir = list[str](), os.scandir

    @contextmanager
    def counted(directory: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        with scandir(directory) as entries:
            yield (listed.append(entry.name) or entry for entry in entries)

    monkeypatch.setattr(os, "scandir", counted)
    read, real = list[str](), cgroup_procs._pids_in
    monkeypatch.setattr(cgroup_procs, "_pids_in", lambda directory: read.append(directory) or real(directory))
    monkeypatch.setattr(pod_brake, "_MOST_NS", 60_000_000_000)  # an emulated CPU lists for a millisecond
    kills = PendingKills(tmp_path)
    looks = (lambda: cgroup_procs.anybody(tmp_path, CGROUPS), lambda: cgroup_procs.empty(tmp_path, CGROUPS))
    for look in (*looks, kills.look, kills.look):
        listed.clear()
        read.clear()
        look()
        assert 0 < len(listed) <= 17 * CGROUPS
        assert 0 < len(read) <= CGROUPS + 1
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    (tmp_path / "c1499" / "cgroup.procs").write_text("")
    for look in (cgroup_procs.empty, lambda path: cgroup_procs.anybody(path, counts=lambda pid: pid != os.getpid())):
        read.clear()
        assert not look(tmp_path)  # not known: 1,000 of them have none that counts
        assert len(read) <= 1001
    read.clear()
    assert cgroup_procs.processes(tmp_path, most=CGROUPS) == [os.getpid()]
    assert len(read) <= CGROUPS


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize(
    "wrong",
    [
        ("--node-cgroup", "no-such-cgroup"),
        ("--listen", "192.0.2.1:1"),
        ("--no-such-option",),
        ("--config", "/no/such/file"),
    ],
    ids=lambda wrong: wrong[0],
)
def test_a_start_that_fails_releases_who_was_held(held: Stand, wrong: tuple[str, ...], running: bool) -> None:
    """Before it has the lock, and after; not what a daemon holds that runs. The service manager starts it no more."""
    held.state.mkdir()
    if running:
        assert held.brake().apply(64 * MIB) is not None
    else:
        killed_daemon(held)
    lock_fd = lock(held.state) if running else -1
    command = (sys.executable, "-P", "-m", "monitor.cli.main", "run", "--mode", "hold", *wrong)
    pods = ("--pods", f"manifests:{held.state}")
    options = ("--state-dir", str(held.state), "--eviction-hard", "memory.available<1Mi", *pods)
    ended = run(*command, *options, env=live.environment())
    if running:
        os.close(lock_fd)
    assert ended.returncode, ended.stderr
    assert wrong[-1].partition(":")[0] in ended.stderr or "another outrace" in ended.stderr
    assert held.noted() == running, ended.stderr


@pytest.mark.parametrize("how", ["no source of pods answers", "it ends before that", "it does not continue"])
def test_what_an_earlier_hot_process_holds_the_next_one_releases(
    held: Stand, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_daemon(held)
    config = replace(RunConfig(), enforce=True, hold=True, state_dir=str(held.state), hold_limit_ns=0)
    gauge: Any = SimpleNamespace(hierarchy=cgroupfs.Hierarchy(HIERARCHY.version, held.node))
    outbox: Any = SimpleNamespace(stats=None, send=lambda _: True, log=lambda *_, **__: None)
    entry: Any = SimpleNamespace(uid="uid", cgroup=held.pod, title="a/b")
    figures: Any = SimpleNamespace()
    made = HoldControl(config, gauge, [entry], figures, lambda _: 0, None, outbox)
    monkeypatch.setattr(made, "go_on", lambda _: [])
    due_ns, release = next(one[1:] for one in made.timers(lambda: None, lambda: None) if one[0] == "left-holds")
    assert due_ns() <= time.monotonic_ns()
    if how == "no source of pods answers":
        release(time.monotonic_ns())
    elif how == "it ends before that":
        made.release_all()
    else:
        listed, real = list[Path](), cgroupfs.below
        monkeypatch.setattr(cgroupfs, "below", lambda path: listed.append(path) or real(path))
        made.begin()
        assert set(listed) <= {held.pod}, "15 us for each cgroup, before the first pass"
    assert not held.noted()
    assert due_ns() is None or how == "it ends before that"


def test_a_pod_can_be_held_as_soon_as_what_was_left_of_it_is_undone(held: Stand) -> None:
    killed_daemon(held)
    brakes, entry = HoldBrakes(HIERARCHY, held.journal), SimpleNamespace(uid="uid", cgroup=held.pod)
    assert brakes.of(entry).problem == LEFT
    undo_on(held.state)
    assert brakes.of(entry).problem == ""
