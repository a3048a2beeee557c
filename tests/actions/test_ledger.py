"""The record of a hold: undone wherever its writer was killed; the holds of other daemons are not touched."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from monitor.actions.changes import RESTORED, UNCHANGED, UNSEEN
from monitor.actions.ledger import MARKS, Ledger, attribute_of, noted, runs, this_daemon
from monitor.actions.undo import undo, undo_left
from monitor.cli import doctor
from monitor.cli.main import main
from monitor.cli.run import lock
from monitor.hold.pod_brake import FREEZE, LIMIT, PodBrake
from monitor.kernel import cgroupfs
from tests import live
from tests.commands import run, without
from tests.hold.braked import AUTO, COMPANION, HIERARCHY, LIMIT_FILE, MIB, Stand, undo_on
from tests.hold.braked import held as held

pytestmark = [pytest.mark.kernel, pytest.mark.oldest]


def wrong(**values: object) -> bytes:
    """A note that says something else."""
    right = {"path": "/x", "file": LIMIT_FILE, "identity": "inode 1", "old": "1", "written": ["2"]}
    return json.dumps({"owner": "me", "changes": [{"uid": "", **right, **values}]}).encode()


def undone(held: Stand, problems: list[str] | None = None) -> dict[str, str]:
    """File -> what became of it."""
    found = undo_on(held.state, (problems if problems is not None else list[str]()).append)
    return {one.file: outcome for one, _, outcome in found}


def left_by_a_dead_one(held: Stand, kind: str = AUTO) -> PodBrake:
    """As a SIGKILL leaves it: its brake in force, and no process to release it."""
    brake = held.brake(kind)
    assert brake.apply(64 * MIB) is not None
    return brake


def test_a_cgroup_made_anew_under_the_same_path_is_not_touched(held: Stand) -> None:
    brake = left_by_a_dead_one(held, kind=LIMIT)
    cap = (held.pod / LIMIT_FILE).read_text()
    held.pod.rmdir()
    cgroupfs.make(held.pod)
    (held.pod / LIMIT_FILE).write_text(cap)
    assert undone(held) == {}
    assert brake.release() == [(LIMIT_FILE, "vanished"), (COMPANION, "vanished")]
    assert (held.pod / LIMIT_FILE).read_text() == cap


def test_the_freezer_made_anew_is_not_touched(held: Stand) -> None:
    """v1 has it in another hierarchy than what says so."""
    if held.freezer is None or held.freezer == held.pod:
        pytest.skip("cgroup v2 freezes the pod's own cgroup; or v1's freezer cannot be mounted")
    left_by_a_dead_one(held, kind=FREEZE)
    (held.freezer / "freezer.state").write_text("THAWED")
    held.freezer.rmdir()
    held.freezer.mkdir()
    (held.freezer / "freezer.state").write_text("FROZEN")
    assert undone(held) == {"freezer.state": "vanished"}
    assert (held.freezer / "freezer.self_freezing").read_text().strip() == "1"


@pytest.mark.parametrize("text", ['"processes": []', '"uid": "u", "processes": [[1, 1, -1001, 0]]'])
def test_marks_that_cannot_be_read_are_one_message_and_stay(held: Stand, text: str) -> None:
    attribute = attribute_of(held.state, MARKS)
    os.setxattr(held.pod, attribute, f'{{"owner": "", {text}}}'.encode())
    problems = list[str]()
    assert undone(held, problems) == {}
    [problem] = problems
    assert f"setfattr -x {attribute} {held.pod}" in problem
    assert attribute in os.listxattr(held.pod)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"[1]", b"{}", b'{"owner": "me", "changes": [{"path": "/x"}]}', b"\xff" * 40, b"[" * 60_000),
        b'{"owner": "me", "changes": [{"written": [], "file": "../x"}]}',
        *(
            wrong(path="relative"),
            wrong(file="../memory.max"),
            wrong(written=[]),
            wrong(old=1),
            wrong(written=["x\n1"]),
        ),
        wrong(path="/proc/sys/kernel", file="core_pattern", old="|/tmp/x", written=["core"]),
    ],
)
def test_what_cannot_be_read_is_one_message_and_hides_nothing_else(held: Stand, text: bytes) -> None:
    other = cgroupfs.make(held.node / "other")
    os.setxattr(other, attribute_of(held.state), text)
    left_by_a_dead_one(held)
    before = (other / LIMIT_FILE).read_text()
    problems = list[str]()
    assert set(undone(held, problems).values()) <= {RESTORED, UNCHANGED}
    [problem] = problems
    assert f"setfattr -x {attribute_of(held.state)} {other}" in problem
    assert "\n" not in problem
    assert (other / LIMIT_FILE).read_text() == before
    assert not held.noted()
    brake = held.any_brake(cgroup=other)
    assert brake.problem == "what an earlier daemon changed is not undone"
    assert brake.apply(MIB) is None


def rewrite(held: Stand, change: Callable[[list[dict[str, object]]], None]) -> None:
    """Change what is noted at the pod."""
    attribute = attribute_of(held.state)
    note = json.loads(os.getxattr(held.pod, attribute))
    change(note["changes"])
    os.setxattr(held.pod, attribute, json.dumps(note).encode())


def test_a_freezer_that_cannot_be_seen_from_here_stays_noted(held: Stand, tmp_path: Path) -> None:
    left_by_a_dead_one(held, kind=LIMIT)
    hidden = {"path": str(tmp_path / "freezer/pod"), "file": "freezer.state", "identity": "inode 1"}
    rewrite(held, lambda changes: changes.append({**changes[0], **hidden}))
    assert undone(held)["freezer.state"] == UNSEEN
    assert held.noted()


def test_what_the_kernel_does_not_take_back_stays_noted(held: Stand) -> None:
    left_by_a_dead_one(held, kind=LIMIT)
    rewrite(held, lambda changes: changes[0].update(old="-2"))
    problems = list[str]()
    assert undone(held, problems) == {COMPANION: RESTORED}
    assert problems == [f"{held.pod}/{LIMIT_FILE} cannot be set back to -2: Invalid argument"]
    assert held.noted()
    (held.pod / LIMIT_FILE).write_text("-1" if HIERARCHY.version == 1 else "max")
    rewrite(held, lambda changes: changes[0].update(old=(held.pod / LIMIT_FILE).read_text().strip()))
    assert LIMIT_FILE in undone(held)


def test_without_cap_sys_admin_the_problem_names_it(held: Stand) -> None:
    """The kernel lets only CAP_SYS_ADMIN write such an attribute, so that no container forges one."""
    script = (
        "import sys; from pathlib import Path; from monitor.actions.ledger import Ledger\n"
        "from monitor.hold.pod_brake import PodBrake; from monitor.kernel import cgroupfs\n"
        "journal = Ledger(Path(sys.argv[1]))\n"
        "print(PodBrake('uid', Path(sys.argv[2]), cgroupfs.detect(), journal).problem)"
    )
    command = (*without("sys_admin"), sys.executable, "-c", script, held.state, held.pod)
    done = run(*command, env=live.environment(), check=True)
    assert done.stdout.strip() == (
        "nothing can be written down at it: Operation not permitted; give outrace CAP_SYS_ADMIN"
    )


def test_unload_releases_what_a_daemon_left_that_does_not_run(held: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    before = held.files()
    left_by_a_dead_one(held)
    held.state.mkdir(exist_ok=True)
    running = lock(held.state)
    try:
        assert main(["unload", "--holds", "--state-dir", str(held.state)]) == 0
        assert held.noted()
    finally:
        os.close(running)
    assert capsys.readouterr().err == ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVICE_RESULT", "signal")  # systemd starts it again, and that one holds on
        assert main(["unload", "--holds", "--state-dir", str(held.state)]) == 0
    assert held.noted()
    assert main(["unload", "--holds", "--state-dir", str(held.state)]) == 0
    assert held.files() == before
    assert f"{held.pod}/{LIMIT_FILE} (hold): restored" in capsys.readouterr().err


def test_another_process_goes_on_with_what_a_dead_one_held(held: Stand) -> None:
    before, began_ns = held.files(), time.monotonic_ns()
    left_by_a_dead_one(held)
    braked, ended_ns = held.files(), time.monotonic_ns()
    brake = held.any_brake()
    assert brake.problem == "what an earlier daemon changed is not undone"
    assert brake.adopt()
    assert began_ns < brake.since_ns < ended_ns, "its time limit goes on"
    assert not brake.adopt()
    assert (brake.problem, brake.is_held, held.files()) == ("", True, braked)
    assert brake.in_force()
    again = brake.apply(70 * MIB)
    assert again.cap == 70 * MIB
    assert began_ns < brake.since_ns < ended_ns
    (held.pod / LIMIT_FILE).write_text(str(100 * MIB))  # by another program: it stays
    brake.close()
    assert held.files() == {**before, LIMIT_FILE: f"{100 * MIB}\n"}
    assert not held.noted()


def test_nothing_is_gone_on_with_by_one_that_brakes_otherwise(held: Stand) -> None:
    before = held.files()
    left_by_a_dead_one(held)
    brake = held.any_brake(FREEZE)
    assert not brake.adopt()
    assert brake.problem == "what an earlier daemon changed is not undone"
    assert undo_left([held.state], lambda *_, **__: None)
    assert held.files() == before
    brake.refresh()
    assert brake.problem == ""
    brake.close()


#: Holds a pod, says so, and waits to be killed.
_HOLDS = """
import sys, time
from pathlib import Path
from monitor.actions import ledger
from monitor.hold import pod_brake
from monitor.kernel import cgroupfs
brake = pod_brake.PodBrake("uid", Path(sys.argv[2]), cgroupfs.detect(), ledger.Ledger(Path(sys.argv[1])))
assert brake.apply(64 << 20) is not None, brake.problem
print("held", flush=True)
time.sleep(1000)
"""


def test_another_daemon_undoes_only_its_own_while_the_other_runs(held: Stand, tmp_path: Path) -> None:
    left_by_a_dead_one(held)
    assert undo_on(tmp_path / "another") == []
    assert held.noted()
    assert not PodBrake("uid", held.pod, HIERARCHY, Ledger(tmp_path / "another")).adopt()
    assert RESTORED in undone(held).values()


def killed_daemon(held: Stand) -> None:
    """A process that holds the pod on the state dir of ``held``, and is gone."""
    command = (sys.executable, "-c", _HOLDS, str(held.state), str(held.pod))
    with subprocess.Popen(command, env=live.environment(), stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout.readline() == "held\n"
        while_it_lives = list(undo(HIERARCHY, lambda _: None))
        # Also by a command that takes its state dir for one without a daemon: in a container it has the same path.
        while_it_lives += undo_on(held.state)
        daemon.kill()
        os.waitid(os.P_PID, daemon.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        [one] = noted(held.node)
        assert runs(one.owner) is False
    assert runs(one.owner) is False
    assert while_it_lives == []


def test_doctor_names_what_a_dead_daemon_left_and_unload_releases_it(
    held: Stand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = held.files()
    killed_daemon(held)
    (found,) = [check for check in doctor._holds() if not check.ok]
    assert f"{held.pod} was changed by a daemon that is dead (pid " in found.detail
    assert main(["unload", "--holds", "--state-dir", str(tmp_path / "another")]) == 0
    assert f"{held.pod}/{LIMIT_FILE} (hold): restored" in capsys.readouterr().err
    assert held.files() == before
    assert [check.ok for check in doctor._holds()] == [True]


def test_who_may_run_is_not_dead() -> None:
    mine = this_daemon()
    other_start = re.sub(r"started \d+", "started 1", mine)
    other_pids = re.sub(r"pid:\[\d+\]", "pid:[1]", other_start)
    other_clock = re.sub(r"time:\[\d+\]", "time:[1]", other_start)
    nobody_can_say = (mine, other_pids, other_clock, "", "nobody")
    assert [runs(owner) for owner in (*nobody_can_say, other_start)] == [True, *[None] * 4, False]
