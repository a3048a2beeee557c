"""What is written down of a hold: undone wherever its writer was killed, and nobody else's touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.actions.changes import FOREIGN, RESTORED, UNCHANGED, UNSEEN
from monitor.actions.ledger import Ledger, attribute_of
from monitor.actions.pod_brake import FREEZE, LIMIT, PodBrake
from monitor.actions.undo import undo_left
from monitor.cli.main import main
from monitor.cli.run import lock
from monitor.kernel import cgroupfs
from tests import live
from tests.actions.braked import COMPANION, HIERARCHY, LIMIT_FILE, MIB, Stand, kinds, stand, undo_on

pytestmark = [pytest.mark.kernel, pytest.mark.oldest]

#: For each number on stdin a child that brakes, moves the cap, loosens and releases, and is killed before so many of
#: its writes; answers with how it ended.
_KILLED = """
import os, signal, sys
from pathlib import Path
from monitor.actions import daemons, ledger, pod_brake
from monitor.kernel import cgroupfs
state, pod, kind = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
hierarchy = cgroupfs.detect()
def counted(call):
    def wrapped(*arguments):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)
    return wrapped
def hold():
    daemons.this_daemon.cache_clear()  # this one is a process of its own, and dead when it is undone
    journal = ledger.Ledger(Path(state))
    brake = pod_brake.PodBrake("uid", pod, hierarchy, journal, kind)
    if brake.problem:
        os._exit(2)
    for name in ("pwrite", "setxattr", "removexattr"):
        setattr(os, name, counted(getattr(os, name)))
    brake.apply(64 << 20)
    brake.apply(72 << 20)
    brake.loosen(80 << 20)
    brake.apply(88 << 20)
    brake.release()
    os._exit(0)
for line in sys.stdin:
    left = int(line)
    child = os.fork()
    if not child:
        hold()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def wrong(**values: object) -> bytes:
    """A note that says something else."""
    right = {
        "path": "/x",
        "file": LIMIT_FILE,
        "identity": "inode 1",
        "old": "1",
        "written": ["2"],
        "uid": "",
        "why": "",
    }
    return json.dumps({"owner": "me", "changes": [{"uid": "", "why": "", **right, **values}]}).encode()


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Stand]:
    with stand(tmp_path / "state") as found:
        yield found


def undone(held: Stand, problems: list[str] | None = None) -> dict[str, str]:
    """File -> what became of it."""
    found = undo_on(held.state, (problems if problems is not None else list[str]()).append)
    return {one.file: one.outcome for one in found}


def left_by_a_dead_one(held: Stand, cap: int = 64 * MIB, kind: str = "auto") -> PodBrake:
    """As a SIGKILL leaves it: its brake in force, and nobody who would release it."""
    brake = held.brake(kind)
    assert brake.apply(cap) is not None
    return brake


@pytest.mark.parametrize("kind", kinds())
def test_a_sigkill_before_any_write_leaves_what_can_be_undone(held: Stand, kind: str) -> None:
    """Before each of its writes, one after the other, until it comes to its end."""
    before = held.files()
    command = (sys.executable, "-c", _KILLED, str(held.state), str(held.pod), kind)
    with subprocess.Popen(
        command, env=live.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for writes in range(100):
            writer.stdin.write(f"{writes}\n")
            ended = int(writer.stdout.readline())
            fates = undone(held)
            assert held.files() == before
            assert not held.noted()
            assert set(fates.values()) <= {RESTORED, UNCHANGED}
            if ended != -signal.SIGKILL:
                break
        assert (ended, writes > 4) == (0, True)


def test_a_held_process_goes_on_when_the_hold_of_a_dead_one_is_undone(held: Stand) -> None:
    with held.puppet() as puppet:
        puppet.tell("anon(40)")
        left_by_a_dead_one(held, 16 * MIB)
        assert held.noted()
        reported = list[str]()
        assert undo_left([held.state], lambda level, message, **fields: reported.append(f"{level} {message}"))
        assert reported
        assert set(reported) == {"info a change of an earlier daemon is undone"}
        assert puppet.answer() == "done"
    assert held.oom_kills() == 0


def test_what_somebody_else_wrote_since_stays(held: Stand) -> None:
    left_by_a_dead_one(held, kind=LIMIT)
    (held.pod / LIMIT_FILE).write_text(str(100 * MIB))
    assert undone(held) == {LIMIT_FILE: FOREIGN, COMPANION: RESTORED}
    assert (held.pod / LIMIT_FILE).read_text().strip() == str(100 * MIB)
    assert not held.noted()


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


def test_a_freezer_that_cannot_be_seen_from_here_stays_noted(held: Stand, tmp_path: Path) -> None:
    left_by_a_dead_one(held, kind=LIMIT)
    attribute = attribute_of(held.state)
    made = json.loads(os.getxattr(held.pod, attribute))
    changes = made["changes"]
    changes.append(
        {**changes[0], "path": str(tmp_path / "freezer/pod"), "file": "freezer.state", "identity": "inode 1"}
    )
    os.setxattr(held.pod, attribute, json.dumps(made).encode())
    assert undone(held)["freezer.state"] == UNSEEN
    assert held.noted()


def test_what_the_kernel_does_not_take_back_stays_noted(held: Stand) -> None:
    left_by_a_dead_one(held, kind=LIMIT)
    attribute = attribute_of(held.state)
    made = json.loads(os.getxattr(held.pod, attribute))
    made["changes"][0]["old"] = "-2"
    os.setxattr(held.pod, attribute, json.dumps(made).encode())
    problems = list[str]()
    assert undone(held, problems) == {COMPANION: RESTORED}
    assert problems == [f"{held.pod}/{LIMIT_FILE} cannot be set back to -2: Invalid argument"]
    assert held.noted()
    (held.pod / LIMIT_FILE).write_text("-1" if HIERARCHY.version == 1 else "max")
    made["changes"][0]["old"] = (held.pod / LIMIT_FILE).read_text().strip()
    os.setxattr(held.pod, attribute, json.dumps(made).encode())
    assert LIMIT_FILE in undone(held)


def test_without_cap_sys_admin_the_problem_names_it(held: Stand) -> None:
    """The kernel lets only CAP_SYS_ADMIN write such an attribute, so that no container forges one."""
    script = (
        "import sys; from pathlib import Path; from monitor.actions.ledger import Ledger\n"
        "from monitor.actions.pod_brake import PodBrake; from monitor.kernel import cgroupfs\n"
        "journal = Ledger(Path(sys.argv[1]))\n"
        "print(PodBrake('uid', Path(sys.argv[2]), cgroupfs.detect(), journal).problem)"
    )
    command = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-c", script]
    done = subprocess.run(
        [*command, str(held.state), str(held.pod)],
        env=live.environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
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


def test_a_journal_is_of_one_state_dir(tmp_path: Path) -> None:
    assert Ledger(tmp_path / "a").attribute != Ledger(tmp_path / "b").attribute


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
    assert again is not None
    assert again.cap == 70 * MIB
    assert began_ns < brake.since_ns < ended_ns
    brake.close()
    assert held.files() == before
    assert not held.noted()


def test_what_somebody_else_wrote_since_is_not_gone_on_with(held: Stand) -> None:
    left_by_a_dead_one(held)
    (held.pod / LIMIT_FILE).write_text(str(100 * MIB))
    brake = held.any_brake()
    assert brake.adopt()
    assert brake.release()
    assert (held.pod / LIMIT_FILE).read_text().strip() == str(100 * MIB)
    assert not held.noted()
    brake.close()


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
