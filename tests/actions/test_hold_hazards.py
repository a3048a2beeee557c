"""What can go wrong around a hold: locks, runtimes, probes, children, the monitor itself. See docs/hold.md."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.actions.changes import RESTORED
from monitor.actions.pod_brake import AUTO, FREEZE
from monitor.kernel import cgroupfs
from monitor.kernel.cgroup_procs import pids_below
from tests import live
from tests.actions.braked import FREEZE_FILE, LIMIT_FILE, MIB, V2, Stand, stand

pytestmark = [pytest.mark.kernel, pytest.mark.oldest]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Stand]:
    with stand(tmp_path / "state") as found:
        yield found


def freezes(stand: Stand) -> Path:
    """The pod's cgroup where it is frozen."""
    if stand.freezer is None:
        pytest.skip("cgroup v1's freezer is not mounted, and cannot be")
    return stand.freezer


def frozen(cgroup: Path) -> bool:
    """Whether this very cgroup was told to freeze."""
    return (cgroup / ("cgroup.freeze" if V2 else "freezer.self_freezing")).read_text().strip() == "1"


def set_frozen(cgroup: Path, wanted: bool) -> None:
    words = ("0", "1") if V2 else ("THAWED", "FROZEN")
    (cgroup / FREEZE_FILE).write_text(words[wanted])


def test_a_lock_of_a_held_process_is_waited_for_until_the_release(held: Stand, tmp_path: Path) -> None:
    """It holds it, as it did when it ran: the waiter gets it when the holder goes on."""
    take = "import fcntl; fd = os.open({!r}, os.O_RDWR | os.O_CREAT); fcntl.flock(fd, fcntl.LOCK_EX)".format
    with held.puppet() as holder, live.Puppet(cgroupfs.make(held.node / "other")) as other:
        holder.do(take(str(tmp_path / "lock")))
        brake = held.brake(FREEZE) if held.freezer is not None else held.brake()
        assert brake.apply(64 * MIB) is not None
        other.tell(take(str(tmp_path / "lock")))
        live.until(lambda: f": -> FLOCK  ADVISORY  WRITE {other.pid} " in Path("/proc/locks").read_text(), "the wait")
        holder.tell("fcntl.flock(fd, fcntl.LOCK_UN)")
        brake.close()
        assert other.answer() == holder.answer() == "done"


def test_a_held_process_has_no_lock_of_the_kernel(held: Stand) -> None:
    """Who waits for a page under v1's limit, or is frozen, can be looked at as before: ps, the kubelet, outrace."""
    with held.puppet() as puppet:
        brake = held.brake()
        puppet.tell("anon(100)")
        live.until(lambda: (brake.usage() or 0) > 24 * MIB, "the pod to grow")
        assert brake.apply((brake.usage() or 0) + 16 * MIB) is not None
        time.sleep(0.3)
        for name in ("cmdline", "maps", "smaps_rollup", "environ", "status"):
            assert Path(f"/proc/{puppet.pid}/{name}").read_bytes()
        brake.close()
        assert puppet.answer() == "done"


def test_a_pod_that_somebody_else_froze_stays_frozen(held: Stand) -> None:
    """`docker pause`, a checkpoint, `runc update` on cgroup v1."""
    pod = freezes(held)
    with held.puppet() as puppet:
        set_frozen(pod, True)
        before = held.files()
        for kind in (AUTO, FREEZE):
            brake = held.brake(kind)
            braked = brake.apply(64 * MIB)
            assert braked is not None
            assert brake.in_force()
            brake.close()
            assert frozen(pod)
            assert held.files() == before
        set_frozen(pod, False)
        puppet.do("pass")


def test_a_runtime_that_thaws_a_held_pod_is_noticed_and_it_is_frozen_again(held: Stand) -> None:
    pod = freezes(held)
    with held.puppet() as puppet:
        brake = held.brake(FREEZE)
        assert brake.apply(64 * MIB) is not None
        assert brake.in_force()
        set_frozen(pod, False)
        assert not brake.in_force()
        puppet.do("pass")
        assert brake.apply(64 * MIB) is not None
        assert frozen(pod)
        assert brake.release() == [(FREEZE_FILE, RESTORED)]
        puppet.do("pass")
        brake.close()


def test_a_container_that_is_frozen_during_a_hold_is_left_to_its_runtime(held: Stand) -> None:
    pod = freezes(held)
    with held.puppet("container") as puppet:
        container = pod / "container"
        (held.pod / "container" / LIMIT_FILE).write_text(str(96 * MIB))
        brake = held.brake(FREEZE)
        assert brake.apply(64 * MIB) is not None
        set_frozen(container, True)  # the runtime updates it: freezes, writes, thaws
        (held.pod / "container" / LIMIT_FILE).write_text(str(80 * MIB))
        brake.release()
        assert frozen(container)
        assert (held.pod / "container" / LIMIT_FILE).read_text().strip() == str(80 * MIB)
        set_frozen(container, False)
        puppet.do("pass")
        brake.close()


def test_containers_with_cgroups_of_their_own_are_held_by_the_pods(held: Stand) -> None:
    with held.puppet("c1") as first, held.puppet("c2/inner") as second:
        before = {path: (path / LIMIT_FILE).read_text() for path in cgroupfs.descendants(held.pod)}
        brake = held.brake()
        for puppet in (first, second):
            puppet.tell("anon(40)")
        live.until(lambda: (brake.usage() or 0) > 24 * MIB, "the pod to grow")
        braked = brake.apply((brake.usage() or 0) + 16 * MIB)  # not reached before the freeze, on an emulated CPU too
        assert braked is not None
        time.sleep(0.3)
        assert (brake.usage() or 0) <= braked.cap
        assert {path: (path / LIMIT_FILE).read_text() for path in cgroupfs.descendants(held.pod)} == before
        brake.close()
        assert first.answer() == second.answer() == "done"


def test_a_probe_connects_to_a_held_server_and_is_answered_after_the_release(held: Stand) -> None:
    """The kernel completes the connection: a TCP probe succeeds, one that wants an answer times out."""
    with held.puppet() as server:
        server.tell(
            "import socket; listener = socket.create_server(('127.0.0.1', 0)); "
            "print(listener.getsockname()[1], flush=True)"
        )
        port = int(server.answer())
        assert server.answer() == "done"
        brake = held.brake(FREEZE) if held.freezer is not None else held.brake()
        assert brake.apply(64 * MIB) is not None
        server.tell("peer = listener.accept()[0]; peer.sendall(b'alive'); peer.close()")
        with socket.create_connection(("127.0.0.1", port), timeout=live.TIMEOUT_S) as probe:
            probe.settimeout(0.3)
            if held.freezer is not None:
                with contextlib.suppress(TimeoutError):
                    assert probe.recv(5) == b"", "a held server answered"
            brake.close()
            probe.settimeout(live.TIMEOUT_S)
            assert probe.recv(5) == b"alive"
        assert server.answer() == "done"


def test_who_joins_a_held_pod_is_held_with_it_and_goes_on_after_the_release(held: Stand) -> None:
    """An exec, or a probe that runs a command: it hangs, and its caller's time limit decides."""
    with held.puppet():
        brake = held.brake()
        assert brake.apply(0) is not None
        late = subprocess.Popen(
            ["sh", "-c", f"echo $$ > {held.pod}/cgroup.procs && echo joined && exec head -c 1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert late.stdin is not None
        assert late.stdout is not None
        try:
            live.until(lambda: late.pid in pids_below(held.pod), "it to join")
            brake.close()
            late.stdin.write(b"x")
            late.stdin.close()
            assert late.stdout.read() == b"joined\nx"
            assert late.wait(live.TIMEOUT_S) == 0
        finally:
            late.kill()
            late.wait()
            late.stdout.close()


def test_the_monitors_own_cgroup_is_never_held(held: Stand) -> None:
    """Nor one that something runs in that started it."""
    script = (
        "import os, sys; from pathlib import Path; from monitor.actions.ledger import Ledger\n"
        "from monitor.actions.pod_brake import PodBrake; from monitor.kernel import cgroupfs\n"
        "pod = Path(sys.argv[2]); Path(pod / 'inner/cgroup.procs').write_text('0')\n"
        "brake = PodBrake('uid', pod, cgroupfs.detect(), Ledger(Path(sys.argv[1])))\n"
        "print(brake.problem, brake.kind, brake.apply(1 << 30), brake.is_held, sep='|')"
    )
    cgroupfs.make(held.pod / "inner")
    before = held.files()
    command = [sys.executable, "-c", script, str(held.state), str(held.pod)]
    done = subprocess.run(command, env=live.environment(), stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.strip() == "outrace or what started it runs in it||None|False"
    assert held.files() == before


def test_a_pod_whose_files_cannot_be_opened_is_not_held_and_has_a_problem(held: Stand, tmp_path: Path) -> None:
    gone = held.any_brake(cgroup=held.node / "gone")
    assert gone.problem == f"{held.node}/gone: No such file or directory"
    assert (gone.kind, gone.apply(MIB), gone.release(), gone.usage()) == ("", None, [], None)
    gone.close()
    cgroupfs.make(held.node / "gone")
    gone.refresh()  # it came late
    assert gone.problem == ""
    gone.close()
