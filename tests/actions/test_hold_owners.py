"""Whose a hold is: of two daemons that hold a pod, and of one that is dead, whatever its state dir was."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.actions.changes import RESTORED
from monitor.actions.daemons import is_dead, this_daemon
from monitor.actions.ledger import Ledger, noted
from monitor.actions.pod_brake import PodBrake
from monitor.actions.undo import undo, undo_left
from monitor.cli import checks
from monitor.cli.main import main
from tests import live
from tests.actions.braked import HIERARCHY, LIMIT_FILE, MIB, Stand, stand, undo_on
from tests.actions.test_ledger import left_by_a_dead_one, undone

pytestmark = [pytest.mark.kernel, pytest.mark.oldest]

#: Holds a pod, says so, and waits to be killed.
_HOLDS = """
import sys, time
from pathlib import Path
from monitor.actions import ledger, pod_brake
from monitor.kernel import cgroupfs
brake = pod_brake.PodBrake("uid", Path(sys.argv[2]), cgroupfs.detect(), ledger.Ledger(Path(sys.argv[1])))
assert brake.apply(int(sys.argv[3])) is not None, brake.problem
print("held", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Stand]:
    with stand(tmp_path / "state") as found:
        yield found


def test_another_daemon_undoes_only_its_own_while_the_other_runs(held: Stand, tmp_path: Path) -> None:
    left_by_a_dead_one(held)
    assert undo_on(tmp_path / "another") == []
    assert held.noted()
    assert not PodBrake("uid", held.pod, HIERARCHY, Ledger(tmp_path / "another")).adopt()
    assert RESTORED in undone(held).values()


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_of_two_daemons_that_hold_a_pod_the_last_gives_its_own_values_back(
    held: Stand, tmp_path: Path, first_ends_first: bool
) -> None:
    """In either order. What the other one wrote is no value of the pod's."""
    before, first = held.files(), held.brake()
    second = PodBrake("uid", held.pod, HIERARCHY, Ledger(tmp_path / "another"))
    assert first.apply(64 * MIB) is not None
    assert second.apply(48 * MIB) is not None
    (first if first_ends_first else second).close()
    if not first_ends_first:
        assert not first.in_force()
        assert first.apply(64 * MIB) is not None, "as the next look does"
    (second if first_ends_first else first).close()
    assert held.files() == before
    assert os.listxattr(held.pod) == []


def killed_daemon(held: Stand, cap: int = 64 * MIB) -> None:
    """A process that holds the pod on the state dir of ``held``, and is gone."""
    command = (sys.executable, "-c", _HOLDS, str(held.state), str(held.pod), str(cap))
    with subprocess.Popen(command, env=live.environment(), stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "held\n"
        while_it_lives = undo(HIERARCHY, lambda _: None)
        # Also by a command that takes its state dir for one without a daemon: in a container it has the same path.
        while_it_lives += undo_on(held.state)
        daemon.kill()
        os.waitid(os.P_PID, daemon.pid, os.WEXITED | os.WNOWAIT)  # nobody has waited for it yet
        [one] = noted(held.node)
        assert is_dead(one.owner)
    assert is_dead(one.owner)
    assert while_it_lives == []


def test_what_a_dead_daemon_left_is_undone_from_any_state_dir(held: Stand, tmp_path: Path) -> None:
    before = held.files()
    killed_daemon(held)
    assert held.files() != before
    assert undo_left([tmp_path / "another"], lambda *_, **__: None)
    assert held.files() == before
    assert not held.noted()


def test_doctor_names_what_a_dead_daemon_left_and_unload_releases_it(
    held: Stand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = held.files()
    killed_daemon(held)
    (found,) = [check for check in checks._holds() if not check.ok]
    assert f"{held.pod} was changed by a daemon that is dead (pid " in found.detail
    assert main(["unload", "--holds", "--state-dir", str(tmp_path / "another")]) == 0
    assert f"{held.pod}/{LIMIT_FILE} (hold): restored" in capsys.readouterr().err
    assert held.files() == before
    assert [check.ok for check in checks._holds()] == [True]


def test_a_start_that_fails_without_a_state_dir_undoes_what_a_dead_daemon_left(held: Stand, tmp_path: Path) -> None:
    before = held.files()
    killed_daemon(held)
    command = (sys.executable, "-P", "-m", "monitor.cli.main", "run", "--state-dir", str(tmp_path / "missing"))
    options = ("--pods", "cgroups", "--node-cgroup", "no-such-cgroup", "--eviction-hard", "memory.available<1Mi")
    ended = subprocess.run((*command, *options), env=live.environment(), capture_output=True, text=True, check=False)
    assert (ended.returncode, "no-such-cgroup" in ended.stderr) == (2, True), ended.stderr
    assert held.files() == before
    assert not (tmp_path / "missing").exists()


def test_who_may_run_is_not_dead() -> None:
    mine = this_daemon()
    other_start = re.sub(r"started \d+", "started 1", mine)
    other_pids = re.sub(r"pid:\[\d+\]", "pid:[1]", other_start)
    other_clock = re.sub(r"time:\[\d+\]", "time:[1]", other_start)
    nobody_can_say = (mine, other_pids, other_clock, "", "nobody")
    assert [is_dead(owner) for owner in (*nobody_can_say, other_start)] == [False] * 5 + [True]
