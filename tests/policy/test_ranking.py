"""The order of victims for memory, kept while they move; and what is worked out once per pod."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.pods import Pod, per_pod
from monitor.policy.qos import BEST_EFFORT, BURSTABLE, GUARANTEED
from monitor.policy.ranking import Candidate, EvictionOrder, memory_key
from monitor.policy.releases import ERAS, era

SMALL = st.integers(0, 4)
CANDIDATES = st.lists(
    st.builds(
        Candidate,
        uid=st.uuids().map(str),
        namespace=st.sampled_from(["a", "b"]),
        name=st.sampled_from(["x", "y"]),
        priority=st.integers(-2, 2),
        request=SMALL,
        usage=st.none() | SMALL,
        critical=st.booleans(),
        request_nanos=st.sampled_from([0, 5 * 10**8]),
    ),
    max_size=8,
    unique_by=lambda c: c.uid,
)


def test_a_part_of_a_byte_that_was_asked_for_counts() -> None:
    """The rules one after the other are recorded (test_recorded.py), but this."""
    less, more = (Candidate(f"u{n}", "ns", "a", 0, 1, 5, critical=False, request_nanos=n) for n in (0, 5 * 10**8))
    assert sorted([more, less], key=memory_key) == [less, more]


usages = st.one_of(st.none(), st.integers(0, 5))
moves = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 6), usages, st.integers(0, 3), st.booleans()),
        st.tuples(st.just("remove"), st.integers(0, 6)),
    ),
    max_size=40,
)


@given(moves, st.sampled_from(ERAS))
def test_the_order_is_that_of_sorting(steps: list[tuple], name: str) -> None:  # type: ignore[type-arg]
    key = era(name).memory_key
    eviction_order = EvictionOrder(key)
    known: dict[str, Candidate] = {}
    for step in steps:
        uid = f"u{step[1]}"
        if step[0] == "put":
            qos = (BEST_EFFORT, BURSTABLE, GUARANTEED)[step[1] % 3]
            candidate = Candidate(uid, "ns", uid, step[3], 2, step[2], critical=step[4], qos=qos)
            known[uid] = candidate
            eviction_order.put(candidate)
        else:
            known.pop(uid, None)
            eviction_order.remove(uid)
        expected = sorted(known.values(), key=key)
        assert list(eviction_order.order()) == expected
        assert eviction_order.first() == next((c for c in expected if not c.critical), None)


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
    assert asked == ["a", "a", "a", "b"]
