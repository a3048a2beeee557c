"""Outrace's own memory signals: their formulas by hand, where they are known, and what a kubelet has in their place."""

import pytest

from monitor.policy.errors import PolicyError
from monitor.policy.eviction_pass import PassConfig, State, run_pass
from monitor.policy.ranking import Candidate
from monitor.policy.signals import (
    ALLOCATABLE_MEMORY,
    ALLOCATABLE_RECLAIMABLE,
    MEMORY,
    MEMORY_PRESSURE,
    NODEFS,
    OWN_SIGNALS,
    RECLAIMABLE,
    Observation,
    used,
)
from monitor.policy.thresholds import kubelets, parse_thresholds

HOG = Candidate("uid-hog", "shop", "hog", 0, 0, 500, False)


@pytest.mark.parametrize(
    ("signal", "taken"), [(MEMORY, 800), (ALLOCATABLE_MEMORY, 800), (RECLAIMABLE, 500), (ALLOCATABLE_RECLAIMABLE, 500)]
)
def test_what_each_formula_takes_for_used(signal: str, taken: int) -> None:
    """Of 900 in use 100 are inactive and 300 active page cache. The lists may be ahead of usage for a moment."""
    assert used(signal, 900, 100, 300) == taken
    assert used(signal, 10, 20, 20) == 0


@pytest.mark.parametrize("signal", OWN_SIGNALS)
def test_a_kubelet_does_not_know_them(signal: str) -> None:
    """By default parsing is the kubelet's, as the recorded cases have it."""
    for maps in (({signal: "1Gi"},), ({}, {signal: "1Gi"}, {signal: "1s"}), ({}, {}, {signal: "1s"})):
        with pytest.raises(PolicyError, match=f"^unsupported eviction signal {signal}$"):
            parse_thresholds(*maps)
    with pytest.raises(PolicyError, match=f"unsupported eviction signal {signal}"):
        parse_thresholds({}, {}, {}, {signal: "1Gi"})


def test_what_outrace_is_given_may_have_them() -> None:
    found = parse_thresholds(
        {RECLAIMABLE: "100Mi", NODEFS: "10%"},
        {RECLAIMABLE: "5%"},
        {RECLAIMABLE: "30s"},
        {RECLAIMABLE: "50Mi"},
        ("pods",),
        own=True,
    )
    assert [(t.signal, t.hard, str(t.value)) for t in found] == [
        (RECLAIMABLE, True, "100Mi"),
        (RECLAIMABLE, False, "5%"),
        (ALLOCATABLE_RECLAIMABLE, True, "100Mi"),  # the copy, as of memory.available
        (NODEFS, True, "10%"),
    ]
    assert [str(t.min_reclaim) for t in found] == ["50Mi", "50Mi", "50Mi", "None"]


def test_a_kubelets_lines_in_their_place() -> None:
    def lines(hard: dict[str, str], enforced: tuple[str, ...] = ()) -> list[str]:
        return [str(t) for t in kubelets(parse_thresholds(hard, None, None, None, enforced, own=True))]

    assert lines({RECLAIMABLE: "100Mi"}) == ["memory.available<100Mi"]
    assert lines({RECLAIMABLE: "100Mi", MEMORY: "30Mi"}) == ["memory.available<30Mi"], "its own, where it is there"
    assert lines({RECLAIMABLE: "100Mi"}, ("pods",)) == ["memory.available<100Mi", "allocatableMemory.available<100Mi"]
    assert lines({NODEFS: "5%"}) == ["nodefs.available<5%"]


def test_a_pass_acts_on_them_as_on_memory() -> None:
    """Hard before soft, kubepods before the node; MemoryPressure; the kubelet's formula beside it is not looked at."""
    config = PassConfig(parse_thresholds({RECLAIMABLE: "100"}, None, None, None, ("pods",), own=True), 300)
    plenty, little = Observation(500, 1000, 1), Observation(99, 1000, 1)

    def passed(**seen: Observation):
        named = {"node": RECLAIMABLE, "kubepods": ALLOCATABLE_RECLAIMABLE, "kubelets": MEMORY}
        observations = {named[name]: o for name, o in seen.items()}
        return run_pass(config, State(), observations, 1, lambda _: [HOG]).outcome

    assert passed(node=plenty, kubepods=plenty, kubelets=little).victim is None
    outcome = passed(node=little, kubepods=plenty, kubelets=little)
    assert outcome.victim == HOG
    assert outcome.starved.signal == RECLAIMABLE
    assert outcome.conditions == {MEMORY_PRESSURE}
    both = passed(node=little, kubepods=little)
    assert both.starved.signal == ALLOCATABLE_RECLAIMABLE
