"""The order of victims for memory."""

from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.pods import pod_from_object
from monitor.policy.ranking import Candidate, candidate, memory_key, memory_order
from monitor.policy.resources import pod_request

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


def compare(a: Candidate, b: Candidate) -> int:
    """The rules one after the other, as the specification has them; negative if ``a`` goes first."""

    def request(c: Candidate) -> int:
        return c.request * 10**9 + c.request_nanos

    def over(c: Candidate) -> bool:
        return c.usage is not None and c.usage * 10**9 > request(c)

    if (a.usage is None) != (b.usage is None):
        return -1 if a.usage is None else 1
    if over(a) != over(b):
        return -1 if over(a) else 1
    if a.priority != b.priority:
        return a.priority - b.priority
    if a.usage is None or b.usage is None:
        return 0
    return (b.usage * 10**9 - request(b)) - (a.usage * 10**9 - request(a))


@given(CANDIDATES)
def test_the_order_follows_the_rules(candidates: list[Candidate]) -> None:
    order = memory_order(candidates)
    assert sorted(c.uid for c in order) == sorted(c.uid for c in candidates)
    for i, earlier in enumerate(order):
        assert all(compare(earlier, later) <= 0 for later in order[i:])


@given(CANDIDATES)
def test_a_total_preorder_consistent_with_its_key(candidates: list[Candidate]) -> None:
    for a in candidates:
        for b in candidates:
            ours, theirs = memory_key(a)[:4], memory_key(b)[:4]
            assert (ours < theirs) == (compare(a, b) < 0)
            assert (ours == theirs) == (compare(a, b) == 0)
            assert (memory_key(a) == memory_key(b)) == (a.uid == b.uid)


@given(CANDIDATES.flatmap(lambda found: st.tuples(st.just(found), st.permutations(found))))
def test_the_order_does_not_depend_on_the_order_given(both: tuple[list[Candidate], list[Candidate]]) -> None:
    candidates, shuffled = both
    assert memory_order(shuffled) == memory_order(candidates)


def test_candidate_of_a_pod() -> None:
    pod = pod_from_object(
        {
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {
                "priority": 2_000_000_000,
                "terminationGracePeriodSeconds": 7,
                "containers": [{"resources": {"requests": {"memory": "1500m"}}}],
            },
        }
    )
    request = pod_request(pod, "memory")
    assert candidate(pod, request, 3) == Candidate("u", "ns", "p", 2_000_000_000, 1, 3, True, 7, 5 * 10**8)
    assert candidate(pod, request, None).usage is None
