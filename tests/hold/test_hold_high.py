"""memory.high of a held pod: set at the stop, kept through the hold, and put back. Its files are plain ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from monitor.hold import pod_brake
from monitor.hold.pod_brake import ROOM, PodBrake
from tests.hold.plain import MIB, PlainPod
from tests.hold.plain import pod as pod

OWN, SET = "max", str(64 * MIB + ROOM)
#: The same of a pod that has 80 MiB by then.
SET_80 = str(80 * MIB + ROOM)


class Story:
    """A hold of the pod: after each step the test reads its memory.high."""

    def __init__(self, pod: PlainPod) -> None:
        self.pod = pod
        pod.brake()

    @property
    def brake(self) -> PodBrake:
        return self.pod.brakes[-1]

    def hold(self) -> None:
        assert self.brake.apply(96 * MIB) is not None
        assert self.brake.in_force()

    def let_cross_the_line(self) -> None:
        assert self.brake.loosen(96 * MIB) is not None

    def release(self) -> None:
        self.brake.release()

    def the_pod_grows(self) -> None:
        (self.pod.path / "memory.current").write_text(str(80 * MIB))

    def another_program_writes_1_mib(self) -> None:
        self.pod.high = str(MIB)

    def another_hot_process_goes_on(self) -> None:
        self.pod.brake_of_the_next()


S = Story
STORIES = {
    "held twice": [(S.hold, SET), (S.release, OWN), (S.the_pod_grows, OWN), (S.hold, SET_80), (S.release, OWN)],
    # The pod has more by then, and before Linux 6.16 a value below that would reclaim in the hot process.
    "written once in a hold": [(S.hold, SET), (S.the_pod_grows, SET), (S.hold, SET), (S.release, OWN)],
    # Below memory.high a thread takes 0.13 MiB a second, and the kubelet would see nothing.
    "a pod that is to cross the line has its own value": [
        (S.hold, SET), (S.let_cross_the_line, OWN), (S.the_pod_grows, OWN), (S.hold, SET_80), (S.release, OWN),
    ],
    "a value of another program stays": [
        (S.hold, SET), (S.another_program_writes_1_mib, str(MIB)), (S.release, str(MIB)),
    ],
    "gone on with": [
        (S.hold, SET), (S.the_pod_grows, SET), (S.another_hot_process_goes_on, SET), (S.hold, SET), (S.release, OWN),
    ],
}  # fmt: skip


@pytest.mark.parametrize("steps", STORIES.values(), ids=STORIES)
def test_memory_high_of_a_held_pod(pod: PlainPod, steps: list[tuple[Callable[[Story], None], str]]) -> None:
    story = Story(pod)
    for number, (step, high) in enumerate(steps):
        step(story)
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
