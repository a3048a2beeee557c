"""Brakes that are opened ahead, on real cgroups."""

import signal
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.actions.ledger import Ledger
from monitor.hold import brakes as hold_brakes
from monitor.hold import pod_brake
from monitor.hold.brakes import KILL, HoldBrakes
from monitor.hold.pod_brake import PendingKills
from monitor.kernel import cgroupfs, procfs
from tests import live
from tests.hold.braked import V2, stand

pytestmark = pytest.mark.kernel


@pytest.fixture(autouse=True)
def whole_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look ends after a millisecond, and a brake is due again after 5 s, which other work on the CPUs may take."""
    monkeypatch.setattr(pod_brake, "_MOST_NS", 1 << 60)
    monkeypatch.setattr(hold_brakes, "REFRESH_NS", 1 << 60)


def test_one_brake_is_opened_or_looked_at_again_in_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crossing waits meanwhile: with four that were opened at once, the pod that grew was held 1 to 2 ms after it."""
    brakes = HoldBrakes(cgroupfs.detect(), Ledger(tmp_path))
    with ExitStack() as stack:
        entries: list[Any] = [
            SimpleNamespace(uid=name, cgroup=stack.enter_context(live.cgroup(f"brakes-{name}"))) for name in "abc"
        ]
        left = brakes.prepare(entries)
        assert (left, [brakes.get(name) is not None for name in "abc"]) == (entries[1:], [True, False, False])
        left = brakes.prepare(left)
        assert (left, brakes.prepare(left)) == (entries[2:], [])
        assert [brakes.of(entry).kind != "" for entry in entries] == [True] * 3
        looks: list[str] = []
        for entry in entries:
            monkeypatch.setattr(brakes.of(entry), "refresh", lambda uid=entry.uid: looks.append(uid))
        assert (brakes.prepare(entries), looks) == ([], []), "none is due"
        monkeypatch.setattr(hold_brakes, "REFRESH_NS", 0)
        assert (brakes.prepare(entries), looks) == (entries[1:], ["a"])
        for name in "abc":
            brakes.drop(name)


def test_a_frozen_pod_runs_only_until_who_was_killed_in_it_has_ended(tmp_path: Path) -> None:
    """v1's freezer keeps SIGKILL from one process of many (a probe whose time was over) as from all."""
    with stand(tmp_path / "state") as held, held.puppet() as probe, held.puppet() as server:
        if V2 or held.freezer is None:
            pytest.skip("cgroup v2 lets SIGKILL through" if V2 else "cgroup v1's freezer is not mounted, and cannot be")
        brakes = HoldBrakes(cgroupfs.detect(), Ledger(tmp_path))
        entry: Any = SimpleNamespace(uid="a", cgroup=held.pod)
        brake = brakes.of(entry)
        assert brake.apply(0) is not None
        assert brakes.look_after(entry) == ""
        for puppet, then in ((probe, hold_brakes.ENDED), (server, hold_brakes.GONE)):
            puppet.process.kill()
            live.until(lambda: brakes.look_after(entry) == KILL, "the SIGKILL to be seen")
            assert [brakes.look_after(entry) for _ in range(3)] == [KILL] * 3
            brakes.let_run("a")
            assert puppet.wait() == -signal.SIGKILL
            assert brakes.look_after(entry) == then
            if then == hold_brakes.ENDED:
                assert brake.apply(0) is not None
                assert (held.freezer / "freezer.state").read_text().strip() in ("FREEZING", "FROZEN")
                assert [brakes.look_after(entry) for _ in range(3)] == [""] * 3
        brakes.drop("a")


def test_who_has_ended_waits_for_no_thaw(tmp_path: Path) -> None:
    """A zombie has the SIGKILL that ended it pending, for the process, until its parent asks, which may be never."""
    with stand(tmp_path / "state") as held, held.puppet() as puppet:
        puppet.do("import os, signal, time; pids = [os.fork() for _ in range(3)]; all(pids) or time.sleep(60)")
        kills = PendingKills(held.pod)
        puppet.do("open('/proc/self/comm', 'w').write(f'{pids[0]}')")
        zombie = int(Path(f"/proc/{puppet.pid}/comm").read_text())
        kills._round = iter([zombie])
        puppet.do("[os.kill(pid, signal.SIGKILL) for pid in pids if pid]")
        puppet.do("[os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT) for pid in pids if pid]")
        assert "ShdPnd:\t0000000000000100" in Path(f"/proc/{zombie}/status").read_text(), "the kernel says so"
        assert not kills.look()


def test_groups_of_a_process_make_no_look_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc/PID/status has all 65,536 of them, and took 30 ms for each process of a held pod."""
    read = list[str]()
    monkeypatch.setattr(procfs, "open", lambda name, how: read.append(name) or open(name, how), raising=False)  # noqa: SIM115
    with stand(tmp_path / "state") as held, held.puppet() as puppet:
        puppet.do("import os; os.setgroups(range(65536))")
        assert not PendingKills(held.pod).look()
        assert Path(f"/proc/{puppet.pid}/status").read_bytes().count(b" ") > 65536
        assert [len(Path(name).read_bytes()) < 4096 for name in read] == [True]
