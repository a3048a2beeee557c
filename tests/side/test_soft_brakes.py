"""Soft brakes of the side: one that is asked for twice is taken back whole.

Stand-ins for the kernel's files, which are in tests/actions/test_soft_brake.py: cgroup v1 has no memory.high.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.actions.changes import Change
from monitor.actions.soft_brake import HIGH, TASKS, SoftBrake
from monitor.link.hold_messages import Soften
from monitor.side import soft_brakes


def change(file: str) -> Change:
    return Change("/pod", file, "inode 1", "max", ("64",), "u", "soft brake", "boot")


def view_of(state: Path, cgroup: Path) -> Any:
    """Of a side that knows one pod, ``u``."""
    return SimpleNamespace(
        config=SimpleNamespace(state_dir=str(state)),
        hierarchy=SimpleNamespace(version=2),
        pods={"u": SimpleNamespace(cgroup=cgroup, pod=SimpleNamespace(namespace="ns", name="p"))},
        log=SimpleNamespace(info=lambda *_, **__: None, warning=lambda text, **_: pytest.fail(text)),
    )


def test_a_pod_that_is_braked_twice_gets_its_memory_high_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time it has a lower memory.high already, the first brake's, which is left as it is."""
    brakes = [SoftBrake(64, (change(TASKS), change(HIGH))), SoftBrake(64, (change(TASKS),))]
    taken_back = list[str]()
    monkeypatch.setattr(soft_brakes, "soften", lambda *_: brakes.pop(0))
    monkeypatch.setattr(soft_brakes, "harden", lambda _, changes: taken_back.extend(c.file for c in changes) or ())
    view = view_of(tmp_path, tmp_path)
    side = soft_brakes.SoftBrakes(view)
    monkeypatch.setattr(soft_brakes, "label", lambda _: "ns/p")
    for number in (1, 2):
        assert side._brake(Soften(number, "u", 0, 10**9)) == 64
    side._harden("u")
    assert sorted(taken_back) == [HIGH, TASKS]
