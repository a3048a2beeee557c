"""memory.high of a held pod: set at the stop, kept through the hold, and put back. Its files are plain ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from monitor.hold import pod_brake
from monitor.hold.pod_brake import ROOM
from tests.hold.plain import MIB, PlainPod
from tests.hold.plain import pod as pod

OWN, SET = "max", str(64 * MIB + ROOM)
#: The same of a pod that has 80 MiB by then.
SET_80 = str(80 * MIB + ROOM)


def hold(pod: PlainPod) -> None:
    assert pod.brakes[-1].apply(96 * MIB) is not None
    assert pod.brakes[-1].in_force()


def let_cross_the_line(pod: PlainPod) -> None:
    assert pod.brakes[-1].loosen(96 * MIB) is not None


def release(pod: PlainPod) -> None:
    pod.brakes[-1].release()


def the_pod_grows(pod: PlainPod) -> None:
    (pod.path / "memory.current").write_text(str(80 * MIB))


def another_program_writes_1_mib(pod: PlainPod) -> None:
    pod.high = str(MIB)


#: Steps of a hold of the pod, and its memory.high after each.
STORIES = {
    "held twice": [(hold, SET), (release, OWN), (the_pod_grows, OWN), (hold, SET_80), (release, OWN)],
    # The pod has more by then, and before Linux 6.16 a value below that would reclaim in the hot process.
    "written once in a hold": [(hold, SET), (the_pod_grows, SET), (hold, SET), (release, OWN)],
    # Below memory.high a thread takes 0.13 MiB a second, and the kubelet would see nothing.
    "a pod that is to cross the line has its own value": [
        (hold, SET), (let_cross_the_line, OWN), (the_pod_grows, OWN), (hold, SET_80), (release, OWN),
    ],
    "a value of another program stays": [
        (hold, SET), (another_program_writes_1_mib, str(MIB)), (release, str(MIB)),
    ],
    "gone on with": [
        (hold, SET), (the_pod_grows, SET), (PlainPod.brake_of_the_next, SET), (hold, SET), (release, OWN),
    ],
}  # fmt: skip


@pytest.mark.parametrize("steps", STORIES.values(), ids=STORIES)
def test_memory_high_of_a_held_pod(pod: PlainPod, steps: list[tuple[Callable[[PlainPod], object], str]]) -> None:
    pod.brake()
    for number, (step, high) in enumerate(steps):
        step(pod)
        assert pod.high == high, (number, step.__name__)
    pod.close()
    assert pod.high == steps[-1][1]
    assert not pod.is_noted


def test_where_nothing_is_reclaimed_for_it_it_is_far_below_the_usage(
    pod: PlainPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the sleep is the longest at once."""
    monkeypatch.setattr(pod_brake, "_linux", lambda: (6, 16))
    brake = pod.brake()
    assert brake.apply(96 * MIB) is not None
    assert pod.high == str(32 * MIB)
