"""Whole passes on answers of the Summary API: the rules one by one, and their laws."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.compat import KUBELET
from monitor.policy.eviction_pass import PassConfig, PassState
from monitor.policy.kubelet_pass import KubeletResult, kubelet_pass
from monitor.policy.layout import DELETE_CONTAINERS, DELETE_IMAGES, SINGLE_DISK, DiskLayout
from monitor.policy.pods import Pod
from monitor.policy.qos import is_critical
from monitor.policy.signals import SIGNALS
from monitor.policy.stats import Summary
from monitor.policy.thresholds import parse_thresholds
from tests.policy.builders import GI, MI, container, pod, stats, summary

S = 10**9
IMAGEFS, SPLIT = DiskLayout(True), DiskLayout(True, True)


def config(hard: dict[str, str], layout: DiskLayout = SINGLE_DISK, **more: Any) -> PassConfig:
    maps = {key: more.pop(key, None) for key in ("soft", "grace", "reclaim")}
    thresholds = parse_thresholds(hard, maps["soft"], maps["grace"], maps["reclaim"])
    more.setdefault("local_storage", False)
    return PassConfig(thresholds, 300 * S, layout=layout, **more)


def run(
    policy: PassConfig,
    pods: Sequence[Pod],
    *answers: dict[str, Any] | None,
    state: PassState | None = None,
    after: dict[str, Any] | None = None,
) -> list[KubeletResult]:
    """A pass for each answer (None: the stats cannot be had), one second apart; ``after`` is what a clean-up leaves."""
    results = []
    state = state or PassState()
    for second, answer in enumerate(answers):
        result = kubelet_pass(
            policy,
            state,
            pods,
            lambda answer=answer: None if answer is None else Summary(answer),
            second * S,
            lambda actions, answer=answer: Summary(answer if after is None else after),
        )
        state = result.state
        results.append(result)
    return results


PODS = [pod("small"), pod("big"), pod("critical", priority=2 * 10**9)]
STATS = [stats("small", 10 * MI), stats("big", 50 * MI), stats("critical", GI)]


def low(second: int, **figures: int) -> dict[str, Any]:
    return summary(*STATS, second=second, **figures)


def names(result: KubeletResult) -> list[str]:
    return [eviction.pod.name for eviction in result.evictions]


def test_nothing_to_look_for_asks_for_no_stats() -> None:
    def never() -> Summary:
        raise AssertionError("asked")

    result = kubelet_pass(config({}), PassState(), PODS, never, 0, lambda _: None)
    assert result == KubeletResult(PassState())


def test_without_stats_everything_stays() -> None:
    first, lost, again = run(config({"memory.available": "1Gi"}), PODS, low(1, memory=MI), None, low(2, memory=MI))
    assert lost.state == first.state
    assert (lost.evictions, lost.outcome, lost.summary_reads) == ((), None, 1)
    assert names(again) == ["big"]


@pytest.mark.parametrize(
    ("signal", "figure", "layout", "actions"),
    [
        ("nodefs.available", "nodefs", SINGLE_DISK, (DELETE_CONTAINERS, DELETE_IMAGES)),
        ("nodefs.inodesFree", "nodefs_inodes", SINGLE_DISK, (DELETE_CONTAINERS, DELETE_IMAGES)),
        ("imagefs.available", "imagefs", SINGLE_DISK, (DELETE_CONTAINERS, DELETE_IMAGES)),
        ("nodefs.available", "nodefs", IMAGEFS, ()),
        ("imagefs.inodesFree", "imagefs_inodes", IMAGEFS, (DELETE_CONTAINERS, DELETE_IMAGES)),
        ("nodefs.available", "nodefs", SPLIT, (DELETE_CONTAINERS,)),
        ("imagefs.available", "imagefs", SPLIT, (DELETE_IMAGES,)),
        ("pid.available", "pids", SINGLE_DISK, ()),
    ],
)
def test_clean_up_comes_before_a_pod(signal: str, figure: str, layout: DiskLayout, actions: tuple[str, ...]) -> None:
    policy = config({signal: "10%"}, layout)
    in_vain, enough = (
        run(policy, PODS, low(1, **{figure: 0}), after=low(1, **{figure: left}))[0] for left in (1, 10**12)
    )
    assert in_vain.reclaimed == enough.reclaimed == actions
    assert in_vain.summary_reads == (2 if actions else 1)
    assert len(in_vain.evictions) == 1
    assert len(enough.evictions) == (0 if actions else 1)
    assert in_vain.warning == enough.warning


# ---- laws

LAYOUTS = st.sampled_from([SINGLE_DISK, IMAGEFS, SPLIT, DiskLayout(False, True)])
AMOUNTS = st.sampled_from([0, 1, 99, 100, 101, 10 * GI, 10 * GI + 200, 15 * GI, 60 * GI])
FIGURES = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("memory", "kubepods", "nodefs", "nodefs_inodes", "imagefs", "containerfs", "containerfs_inodes"), AMOUNTS
    )
    | {"pids": st.sampled_from([-5, 0, 100, 30000])},
)


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[Pod], list[dict[str, Any]]]:
    pods, figures = [], []
    for name in draw(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=5)):
        requests = draw(st.sampled_from([{}, {"memory": "2"}, {"memory": "1500m", "ephemeral_storage": "3"}]))
        limits = draw(st.sampled_from([{}, {"ephemeral-storage": "4"}]))
        volumes = draw(st.sampled_from([[], [{"name": "v", "emptyDir": {"sizeLimit": "2"}}]]))
        priority = draw(st.sampled_from([None, -1, 0, 7, 2 * 10**9]))
        pods.append(pod(name, container(limits=limits, **requests), priority=priority, volumes=volumes))
        if draw(st.booleans()):
            small = st.integers(0, 5)
            used = st.tuples(small, small)
            figures.append(
                stats(
                    name,
                    draw(st.none() | small),
                    draw(st.none() | small),
                    rootfs=draw(used),
                    logs=draw(used),
                    volumes={"v": draw(used)},
                    ephemeral=draw(small),
                )
            )
    return pods, figures


@st.composite
def worlds(draw: st.DrawFn) -> tuple[PassConfig, list[Pod], list[dict[str, Any] | None]]:
    signals = st.sampled_from(SIGNALS)
    values = st.sampled_from(["100", "10%", "12Gi"])
    hard, soft, reclaim = (draw(st.dictionaries(signals, values, max_size=3)) for _ in range(3))
    grace = {signal: draw(st.sampled_from(["0s", "2s", "1h"])) for signal in soft}
    policy = config(
        hard,
        draw(LAYOUTS),
        soft=soft,
        grace=grace,
        reclaim=reclaim,
        local_storage=draw(st.booleans()),
        max_pod_grace_s=draw(st.integers(-1, 40)),
        compat=draw(st.sampled_from(["sane", KUBELET])),
    )
    pods, figures = draw(crowds())
    answers = [
        summary(*figures, second=second, **draw(FIGURES)) if draw(st.integers(0, 9)) else None
        for second in range(draw(st.integers(1, 6)))
    ]
    return policy, pods, answers


@given(worlds())
def test_at_most_one_pod_for_thresholds_and_none_that_is_critical(
    world: tuple[PassConfig, list[Pod], list[dict[str, Any] | None]],
) -> None:
    policy, pods, answers = world
    for result in run(policy, pods, *answers):
        assert not any(is_critical(eviction.pod) for eviction in result.evictions)
        assert sum(eviction.disrupted for eviction in result.evictions) <= 1
        local = [e for e in result.evictions if not e.disrupted]
        if local:
            assert policy.local_storage
            assert (len(local), result.warning, result.reclaimed) == (len(result.evictions), None, ())
        if result.evictions and not local:
            assert result.warning is not None
        if result.outcome is not None and result.evictions and not local:
            assert result.outcome.starved in result.outcome.met


@given(worlds())
def test_the_same_inputs_give_the_same_passes(world: tuple[PassConfig, list[Pod], list[dict[str, Any] | None]]) -> None:
    policy, pods, answers = world
    once = run(policy, pods, *answers)
    assert run(replace(policy), pods[::-1][::-1], *answers) == once
    shuffled = run(policy, pods[::-1], *answers)
    for a, b in zip(once, shuffled, strict=True):
        assert a.state == b.state
        assert sorted(names(a)) == sorted(names(b))


def test_a_clean_up_must_clear_every_threshold_min_reclaim_and_soft_ones_included() -> None:
    policy = config(
        {"nodefs.available": "10%"},
        reclaim={"nodefs.available": "5Gi"},
        soft={"memory.available": "1Gi"},
        grace={"memory.available": "1h"},
    )
    for left, memory, evicted in ((11 * GI, 2 * GI, 1), (15 * GI, 2 * GI, 1), (15 * GI + 200, 2 * GI, 0)):
        (result,) = run(policy, PODS, low(1, nodefs=0, memory=memory), after=low(1, nodefs=left, memory=memory))
        assert len(result.evictions) == evicted, left
    (result,) = run(policy, PODS, low(1, nodefs=0, memory=0), after=low(1, nodefs=50 * GI, memory=0))
    assert len(result.evictions) == 1  # for a disk that is clean again


def test_local_storage_comes_first_and_takes_every_pod_over_its_limits() -> None:
    empty_dir = {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]}
    pods = [pod("a", **empty_dir), pod("b"), pod("c", **empty_dir), pod("k", priority=2 * 10**9, **empty_dir)]
    over = {"volumes": {"v": (2 * MI, 0)}}
    figures = [stats(name, MI, **over) for name in "abck"]
    policy = config({"memory.available": "1Gi"}, local_storage=True)
    first, second = run(policy, pods, summary(*figures, second=1, memory=0), summary(*figures[1:2], second=2, memory=0))
    assert names(first) == ["a", "c"]
    assert first.warning is None
    assert {(e.grace_s, e.disrupted, tuple(e.annotations)) for e in first.evictions} == {(1, False, ())}
    assert first.state.core.conditions == {"MemoryPressure"}  # seen, though not acted on
    assert len(second.evictions) == 1
    assert second.warning == "Attempting to reclaim memory"
