"""Brakes that are opened ahead, on real cgroups."""

import signal
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.actions.hold_journal import HoldJournal
from monitor.hot import hold_brakes
from monitor.hot.hold_brakes import HoldBrakes
from monitor.kernel import cgroupfs
from tests import live
from tests.actions.braked import MIB, V2, stand

pytestmark = pytest.mark.kernel


def test_one_brake_is_opened_in_a_call(tmp_path: Path) -> None:
    """A crossing waits meanwhile: with four that were opened at once, who grew was held 1 to 2 ms after it."""
    brakes = HoldBrakes(cgroupfs.detect(), HoldJournal(tmp_path), "auto")
    with ExitStack() as stack:
        entries: list[Any] = [
            SimpleNamespace(uid=name, cgroup=stack.enter_context(live.cgroup(f"brakes-{name}"))) for name in "abc"
        ]
        left = brakes.prepare(entries)
        assert (left, [brakes.get(name) is not None for name in "abc"]) == (entries[1:], [True, False, False])
        left = brakes.prepare(left)
        assert (left, brakes.prepare(left)) == (entries[2:], [])
        assert [brakes.of(entry).kind != "" for entry in entries] == [True] * 3
        assert brakes.prepare(entries) == [], "none is due"
        for name in "abc":
            brakes.drop(name)


def test_one_that_was_opened_long_ago_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brakes = HoldBrakes(cgroupfs.detect(), HoldJournal(tmp_path), "auto")
    with live.cgroup("brakes-again") as path:
        entry: Any = SimpleNamespace(uid="a", cgroup=path)
        assert brakes.prepare([entry]) == []
        brake = brakes.get("a")
        assert brake is not None
        looks: list[None] = []
        monkeypatch.setattr(brake, "refresh", lambda: looks.append(None))
        brakes.prepare([entry])
        assert looks == []
        monkeypatch.setattr(hold_brakes, "REFRESH_NS", 0)
        brakes.prepare([entry])
        assert looks == [None]
        brakes.drop("a")


def test_a_frozen_pod_runs_only_until_who_was_killed_in_it_has_ended(tmp_path: Path) -> None:
    """v1's freezer keeps SIGKILL from one process of many (a probe whose time was over) as from all."""
    with stand(tmp_path / "state") as held, held.puppet() as probe, held.puppet() as server:
        if V2 or held.freezer is None:
            pytest.skip("cgroup v2 lets SIGKILL through" if V2 else "cgroup v1's freezer is not mounted, and cannot be")
        brakes = HoldBrakes(cgroupfs.detect(), HoldJournal(tmp_path), "freeze")
        entry: Any = SimpleNamespace(uid="a", cgroup=held.pod)
        brake = brakes.of(entry)
        assert brake.apply(0) is not None
        assert brakes.look_after(entry) == ""
        probe.process.kill()
        live.until(lambda: brakes.look_after(entry) == "" and brakes.thawed, "the SIGKILL to be seen")
        assert probe.wait() == -signal.SIGKILL
        assert brakes.look_after(entry) == hold_brakes.ENDED
        assert brake.apply(0) is not None
        assert (held.freezer / "freezer.state").read_text().strip() in ("FREEZING", "FROZEN")
        assert [brakes.look_after(entry) for _ in range(3)] == [""] * 3
        server.process.kill()
        live.until(lambda: brakes.look_after(entry) in ("", hold_brakes.GONE) and brakes.thawed, "the second SIGKILL")
        assert server.wait() == -signal.SIGKILL
        assert brakes.look_after(entry) == hold_brakes.GONE
        brakes.drop("a")


def test_a_frozen_pod_runs_for_a_process_that_runc_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or its container could not be killed. A name can be taken in vain: so not often."""
    with stand(tmp_path / "state") as held, held.puppet() as puppet:
        if V2 or held.freezer is None:
            pytest.skip("cgroup v2 lets SIGKILL through" if V2 else "cgroup v1's freezer is not mounted, and cannot be")
        puppet.do("open('/proc/self/comm', 'w').write('runc:[2:INIT]')")
        entry: Any = SimpleNamespace(uid="a", cgroup=held.pod)
        brakes = HoldBrakes(cgroupfs.detect(), HoldJournal(tmp_path), "auto")
        brake = brakes.of(entry)
        assert brake.apply((brake.usage() or 0) + 8 * MIB) is not None
        brakes.let_start("a")
        assert not brakes.thawed, "nobody has looked"
        assert [brakes.look_after(entry) for _ in range(3)] == [""] * 3
        brakes.let_start("a")
        assert brakes.thawed == {"a"}
        assert (held.freezer / "freezer.state").read_text().strip() == "THAWED"
        assert brakes.look_after(entry) == hold_brakes.ENDED
        assert brake.apply((brake.usage() or 0) + 8 * MIB) is not None
        assert brakes.look_after(entry) == ""
        brakes.let_start("a")
        assert not brakes.thawed, "within a second"
        brakes.thawed.add("b")
        monkeypatch.setattr(hold_brakes, "_STARTS_NS", 0)
        for other in (True, False):
            assert brake.apply((brake.usage() or 0) + 8 * MIB) is not None
            assert brakes.look_after(entry) == ""
            brakes.let_start("a")
            assert ("a" in brakes.thawed) is not other, "one runs at a time"
            brakes.thawed.discard("b")
        brakes.drop("a")
