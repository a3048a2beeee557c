"""Candidates kept in order while they move: the same order as sorting them all."""

from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.eviction_order import EvictionOrder
from monitor.policy.qos import BEST_EFFORT, BURSTABLE, GUARANTEED
from monitor.policy.ranking import Candidate
from monitor.policy.releases import ERAS, era

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
