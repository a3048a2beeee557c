"""Which of the evicted pods go."""

from hypothesis import given
from hypothesis import strategies as st

from monitor.evicted.pods import EvictedPod
from monitor.evicted.sweep import Criteria, choose

NOW = 1_000_000.0


def pod(name: str, age_s: float | None, namespace: str, owner: str, held: str) -> EvictedPod:
    kind, _, owner_name = owner.partition("/")
    since = None if age_s is None else NOW - age_s
    return EvictedPod(namespace, name, f"uid-{namespace}-{name}", "1", "n", kind, owner_name, since, "", held)


PODS = st.lists(
    st.builds(
        pod,
        st.uuids().map(str),
        st.none() | st.integers(0, 100),
        st.sampled_from("abc"),
        st.sampled_from(["Deployment/web", "Job/x", "none"]),
        st.sampled_from(["", "", "its Job has not counted it yet", "is being deleted"]),
    ),
    max_size=30,
)


@given(PODS, st.none() | st.integers(0, 100))
def test_laws(pods: list[EvictedPod], older_than_s: int | None) -> None:
    choices = choose(pods, Criteria(older_than_s=older_than_s), NOW)
    assert sorted(choice.pod.uid for choice in choices) == sorted(pod.uid for pod in pods)
    ages = [NOW - choice.pod.since for choice in choices if choice.pod.since is not None]
    assert ages == sorted(ages, reverse=True)
    for choice in choices:
        since = choice.pod.since
        old = older_than_s is None or (since is not None and NOW - since >= older_than_s)
        assert choice.goes == (old and not choice.pod.held)
        assert choice.stays.startswith(choice.pod.held)
