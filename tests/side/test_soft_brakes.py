"""Soft brakes of the helper process, on files that stand for a pod's: cgroup v1 has no memory.high.

On real cgroups: tests/hold/test_soft_brake.py.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from monitor.actions.changes import BrakeFile
from monitor.errors import MonitorError
from monitor.link.messages import Soften
from monitor.side.holds import SoftBrakes
from tests.hold.plain import MIB, PlainPod
from tests.hold.plain import pod as pod

#: Of 64 MiB that cannot be reclaimed.
HIGH = int(64 * MIB * 0.65) // 4096 * 4096


def side_of(pod: PlainPod) -> SoftBrakes:
    """Of a helper process that knows one pod, ``u``."""
    view: Any = SimpleNamespace(
        config=SimpleNamespace(state_dir=str(pod.state)),
        hierarchy=SimpleNamespace(version=2),
        pods={"u": SimpleNamespace(cgroup=pod.path, pod=SimpleNamespace(namespace="ns", name="p"))},
    )
    log: Any = SimpleNamespace(info=lambda *_, **__: None, warning=lambda text, **_: pytest.fail(text))
    return SoftBrakes(view, lambda _: True, log)


def files(pod: PlainPod) -> dict[str, str]:
    return {name: (pod.path / name).read_text().strip() for name in ("memory.high", "pids.max")}


def test_a_pod_that_is_braked_twice_gets_its_memory_high_back(pod: PlainPod) -> None:
    before, side = files(pod), side_of(pod)
    for number in (1, 2):
        assert side._brake(Soften(number, "u", 0, 10**9)) == HIGH
        assert files(pod) == {"memory.high": str(HIGH), "pids.max": "3"}
        (pod.path / "memory.current").write_text(str(80 * MIB))
    side._harden("u")
    assert files(pod) == before


def test_what_the_kernel_refuses_to_take_back_stays_noted(pod: PlainPod, monkeypatch: pytest.MonkeyPatch) -> None:
    before, side = files(pod), side_of(pod)
    side._brake(Soften(1, "u", 0, 10**9))

    def refused(*_: object) -> None:
        raise OSError(22, "refused")

    with monkeypatch.context() as patch:
        patch.setattr(BrakeFile, "write", refused)
        side._harden("u")
    assert files(pod) != before
    with pytest.raises(MonitorError, match="not undone"):
        side._brake(Soften(2, "u", 0, 10**9))
    pod.undo()
    assert files(pod) == before


@pytest.mark.parametrize("own", ["max", str(112 * MIB)])
@pytest.mark.parametrize("first", ["hold", "soft"])
@pytest.mark.parametrize("ends", ["hold soft", "soft hold", "hold killed", "soft killed", "killed"])
def test_a_hold_and_a_soft_brake_of_one_pod_leave_nothing(pod: PlainPod, own: str, first: str, ends: str) -> None:
    """Each writes memory.high, and what the other one wrote is no value of the pod's. ``killed``: the next start undoes
    what is left. Before one ledger held both, a value of the hold could stay for good.
    """
    pod.high = own
    before, side, brake = files(pod), side_of(pod), pod.brake()
    for change in ("hold", "soft") if first == "hold" else ("soft", "hold"):
        if change == "hold":
            assert brake.apply(96 * MIB) is not None
            brake.high_is_left = first == "hold"
        else:
            side._brake(Soften(1, "u", 0, 10**9))
    assert files(pod) != before
    for end in ends.split():
        if end == "hold":
            brake.release()
        elif end == "soft":
            side._harden("u")
        else:
            pod.undo()
    assert files(pod) == before
    assert (pod.path / "memory.max").read_text().strip() == "max"
    assert not pod.is_noted
    side._harden("u")
    pod.close()
    assert files(pod) == before
