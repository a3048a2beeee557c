"""What is worked out once per pod: kept beside it, and gone with it. The pod itself is really frozen."""

import dataclasses
import gc

import pytest

from monitor.policy.per_pod import per_pod
from monitor.policy.pods import Pod


def test_an_answer_is_worked_out_once_for_each_pod_and_argument() -> None:
    asked = []

    @per_pod
    def name(pod: Pod, end: str = "") -> str:
        asked.append(pod.name)
        return pod.name + end

    one, same = Pod("u", "ns", "a"), Pod("u", "ns", "a")
    assert [name(one), name(one), name(one, "!"), name(same)] == ["a", "a", "a!", "a"]
    assert asked == ["a", "a", "a"]  # an equal pod is another one
    assert name(dataclasses.replace(one, name="b")) == "b"
    assert name.each([one, same, Pod("u", "ns", "c")], "!") == ["a!", "a!", "c!"]
    assert name.each([one, same], "!") == ["a!", "a!"]
    assert asked == ["a", "a", "a", "b", "a", "c"]


def test_nothing_is_kept_of_a_pod_that_is_gone() -> None:
    asked = []

    @per_pod
    def name(pod: Pod) -> str:
        asked.append(pod.name)
        return pod.name

    for i in range(100):  # most of these get the id of the one before
        assert name(Pod(f"u{i}", "ns", f"p{i}")) == f"p{i}"
        gc.collect(0)
    assert len(asked) == 100
    kept = [cell.cell_contents for cell in name.__closure__ or () if isinstance(cell.cell_contents, dict)]
    assert sorted(kept, key=len) == [{}, {(): {}}]


def test_a_pod_cannot_be_changed() -> None:
    pod = Pod("u", "ns", "a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        pod.name = "b"  # type: ignore[misc]
    assert not hasattr(pod, "__dict__")
    assert not any(f.name == "memo" for f in dataclasses.fields(pod))
