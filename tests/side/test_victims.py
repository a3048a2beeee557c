"""Whether the kernel and the policy would take different pods."""

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from monitor.kernel.cgroupfs import Hierarchy, Reading
from monitor.pods.model import FoundPod
from monitor.policy.pods import Pod
from monitor.race.badness import Process
from monitor.settings.config import RunConfig
from monitor.side import victims
from monitor.side.races import Races
from tests.side.parts import Parts

MIB = 1 << 20


@pytest.mark.parametrize(("pod", "differ"), [("a", False), ("b", True), (None, True), ("", False)])
def test_the_kernels_victim_is_compared_with_the_first_that_may_be_evicted(
    pod: str | None, differ: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``pod``: of the only process; "": there is none. A critical pod has most memory."""
    known: Any = Parts(RunConfig(), Hierarchy(2, tmp_path), 1 << 30)
    known.node.pods = {
        uid: FoundPod(Pod(name=uid, namespace="ns", uid=uid, priority=priority), tmp_path / uid, {})
        for uid, priority in (("a", 0), ("b", 0), ("critical", 2_000_000_000))
    }
    sizes = {"a": 200 * MIB, "b": 100 * MIB, "critical": 300 * MIB}
    known.figures.used = lambda path, *_: Reading(sizes[path.name], 0, 0)
    found = [] if pod == "" else [Process(7, "x", MIB, 0, 0, 0, (), pod)]
    monkeypatch.setattr(victims, "candidates", lambda *_: found)
    monkeypatch.setattr(victims, "total_pages", lambda *_: 1 << 18)
    victim, found_other = victims.kernels_victim(known.node, known.figures)
    assert found_other is differ
    assert (None if victim is None else victim.process.pid) == (None if pod == "" else 7)


def test_the_victim_of_an_old_look_is_not_shown_and_top_looks_itself() -> None:
    """Without a reader nothing looks, and the process that was found may be gone for hours."""
    old = SimpleNamespace(figures=SimpleNamespace(stats={"armed": 1}), _look_due_s=math.inf, _looked_s=-math.inf)
    old._kernels = ("the one of before", True)
    assert Races.kernels_victim(cast(Any, old)) == (None, False)
    old._look_for_victim = lambda: vars(old).update(_kernels=("the one of now", False), _looked_s=time.monotonic())
    old._look_due_s = 0.0
    assert Races.kernels_victim(cast(Any, old), waits=True) == ("the one of now", False)
    old.figures.stats["armed"] = 0
    assert Races.kernels_victim(cast(Any, old), waits=True) == (None, False)
