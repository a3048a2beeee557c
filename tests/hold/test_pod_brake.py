"""A braked pod stops growing, goes on undamaged when it is released, and every value is what it was."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from monitor.actions.changes import RESTORED
from monitor.hold import pod_brake
from monitor.hold.pod_brake import FREEZE, LIMIT, PodBrake
from monitor.kernel import cgroupfs
from tests import live
from tests.hold.braked import AUTO, LIMIT_FILE, MIB, V2, Stand, settled, stand

pytestmark = pytest.mark.kernel

#: On cgroup v2 the limit alone kills at the cap: test_the_cap_of_v2_alone_kills_in_the_pod.
STOPS = [AUTO, FREEZE] if V2 else [AUTO, LIMIT, FREEZE]
#: Takes memory in pieces, each page with a pattern of its own, and looks at it again. From 16 MiB on it takes 1 MiB a
#: second while the file is there: a test that has no CPU for a while still stops it half-way.
GROW = """
def fill(mib, slowly, piece=64 * 1024):
    global block
    block = mmap.mmap(-1, mib * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, mib * MIB, piece):
        at >= 16 * MIB and os.path.exists(slowly) and time.sleep(0.06)
        block[at:at + piece] = (at // piece).to_bytes(8, 'little') * (piece // 8)
def whole(piece=64 * 1024):
    starts = range(0, len(block), piece)
    return all(block[at:at + piece] == (at // piece).to_bytes(8, 'little') * (piece // 8) for at in starts)
"""


def growing(brake: PodBrake, puppet: live.Puppet, slowly: Path) -> None:
    """It takes 100 MiB, and has begun to."""
    before = brake.usage() or 0
    slowly.touch()
    puppet.do(f"exec({GROW!r})")
    puppet.tell(f"fill(100, {str(slowly)!r})")
    live.until(lambda: (brake.usage() or 0) > before + 8 * MIB, "the pod to grow")


@pytest.mark.parametrize("kind", STOPS)
def test_a_braked_pod_stops_and_goes_on_undamaged(held: Stand, tmp_path: Path, kind: str) -> None:
    with held.puppet() as puppet:
        before, brake, slowly = held.files(), held.brake(kind), tmp_path / "slowly"
        growing(brake, puppet, slowly)
        braked = brake.apply((brake.usage() or 0) + 8 * MIB)
        assert braked is not None
        slowly.unlink()
        assert braked.brake == brake.kind == {AUTO: "limit+high+freeze" if V2 else "limit+freeze"}.get(kind, kind)
        assert brake.is_held
        assert brake.in_force()
        assert held.noted()
        usage = settled(brake.usage)
        assert usage < 100 * MIB, "what it takes"
        if braked.cap:
            assert usage <= braked.cap
        assert held.files() != before
        fates = brake.release()
        assert {fate for _, fate in fates} == {RESTORED}
        assert not brake.is_held
        assert held.files() == before
        assert not held.noted()
        assert puppet.answer() == "done"
        puppet.do("assert whole()")
        assert held.oom_kills() == 0
        brake.close()


def test_a_limit_stays_where_the_freezer_is_gone(held: Stand) -> None:
    """A runtime removes the hierarchies one after the other."""
    if V2 or held.freezer is None:
        pytest.skip("cgroup v2 freezes the pod's own cgroup; or v1's freezer cannot be mounted")
    before, brake = held.files(), held.brake()
    held.freezer.rmdir()
    for _ in range(2):
        braked = brake.apply(64 * MIB)
        assert braked is not None
        assert (braked.brake, braked.cap) == (LIMIT, 64 * MIB)
    assert (held.pod / LIMIT_FILE).read_text().strip() == str(64 * MIB)
    held.freezer.mkdir()
    brake.close()
    assert held.files() == before


def test_a_cgroup_that_is_gone(held: Stand) -> None:
    brake = held.brake()
    assert brake.apply(40 * MIB) is not None
    held.pod.rmdir()
    assert {fate for _, fate in brake.release()} <= {"vanished", RESTORED}
    assert brake.apply(40 * MIB) is None
    assert brake.problem == "its cgroup is gone"
    brake.refresh()
    assert brake.problem == f"{held.pod}: No such file or directory"
    assert (brake.kind, brake.apply(MIB), brake.release(), brake.usage()) == ("", None, [], None)
    cgroupfs.make(held.pod)
    brake.refresh()
    assert brake.problem == ""
    assert brake.apply(40 * MIB) is not None
    brake.close()


def test_a_sigkill_is_found_among_many_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts: the hot process looks ten times a second. In which of them the process is depends on its pid."""
    seen: list[int] = []
    is_killed = pod_brake._is_killed
    monkeypatch.setattr(pod_brake, "_is_killed", lambda pid: seen.append(pid) or is_killed(pid))
    if V2:
        pytest.skip("cgroup v2 lets SIGKILL through")
    with stand(tmp_path / "state", 512) as held, held.puppet() as puppet:
        if held.freezer is None:
            pytest.skip("cgroup v1's freezer is not mounted, and cannot be")
        puppet.do("children = [os.fork() or time.sleep(1000) for _ in range(150)]")
        brake = held.brake(FREEZE)
        assert brake.apply(0) is not None
        while len(set(seen)) < 151:
            before = len(seen)
            assert not brake.waits_for_thaw()
            assert len(seen) - before <= pod_brake.PROCESSES
        puppet.process.kill()
        live.until(brake.waits_for_thaw, "the look that has it")
        brake.thaw()
        assert puppet.wait() == -signal.SIGKILL
        brake.close()
