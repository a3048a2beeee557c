"""What would have to change for a pod to be passed over, and why a pod is what it is."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from monitor.policy.explain import Change, changes
from monitor.policy.layout import SINGLE_DISK, DiskLayout
from monitor.policy.pod_reasons import why_class, why_request
from monitor.policy.pods import Pod
from monitor.policy.qos import BEST_EFFORT, BURSTABLE, GUARANTEED
from monitor.policy.quantity import Quantity
from monitor.policy.releases import CURRENT, ERAS, era
from monitor.policy.signals import MEMORY_SIGNALS
from monitor.policy.stats import PodStats
from monitor.policy.victims import Ranked, rank_pods
from tests.policy.builders import IMAGEFS, MEMORY, MI, SPLIT, container, pod, ranked, stats


# ---- what would move a pod
def texts(one: Ranked, other: Ranked, signal: str = MEMORY, layout: DiskLayout = SINGLE_DISK) -> list[str]:
    return [change.text for change in changes(one, other, signal, layout)]


def test_what_would_have_a_pod_passed_over() -> None:
    pods = [pod("a", container(memory="64Mi")), pod("b", container(memory="100Mi"))]
    first, second = ranked(pods, [stats("a", 300 * MI), stats("b", 200 * MI + 1)])
    assert texts(first, second) == [
        "raise the memory request of container c from 64Mi to 200Mi",
        "raise its priority from 0 to 1",
        "use 136Mi less memory: 164Mi instead of 300Mi",
    ]
    assert texts(second, first) == [
        "lower its priority from 0 to -1",
        "use 136Mi more memory: 352321537 instead of 209715201",
    ]


def test_equal_pods_are_shown_as_equal() -> None:
    first, second = ranked([pod("b", container(memory="1")), pod("a")], [stats("b", 5), stats("a", 2)])
    assert first.pod.name == "b"
    assert texts(first, second)[0] == (
        "raise the memory request of container c from 1 to 3; they are equal then, and the names decide"
    )


def test_whose_request_is_raised() -> None:
    two = pod("a", container("small", memory="1Mi"), container("big", {"memory": "2Mi"}, memory="1Mi"))
    figures = stats("a", 10 * MI)
    figures["containers"] = [
        {"name": name, "memory": {"workingSetBytes": used}} for name, used in (("small", MI), ("big", 9 * MI))
    ]
    first, second = ranked([two, pod("b")], [figures, stats("b", MI + 1)])
    (change, *_) = changes(first, second, MEMORY, SINGLE_DISK)
    assert change.text.startswith("raise the memory request of container big from 1Mi to 8Mi, and its limit with it")
    assert change.pod.containers[1].limits["memory"] == Quantity.parse("8Mi")
    whole = pod("a", container(memory="1Gi"), resources={"requests": {"memory": "1Mi"}})
    first, second = ranked([whole, pod("b")], [stats("a", 10 * MI), stats("b", MI + 1)])
    assert texts(first, second)[0].startswith(
        "raise the memory request of the whole pod (spec.resources) from 1Mi to 9Mi"
    )
    # A release that knows nothing of the whole pod's is not advised to change it.
    first, second = ranked([whole, pod("b")], [stats("a", 2**31), stats("b", MI + 1)], name="kubelet-1.17")
    (change, *_) = changes(first, second, MEMORY, SINGLE_DISK, era("kubelet-1.17"))
    assert change.text.startswith("raise the memory request of container c from 1Gi to 2047Mi")


SMALL = st.integers(0, 6)


AMOUNT = st.sampled_from(["0", "1", "1500m", "2", "4"])


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[Pod], list[dict[str, Any]]]:
    """Pods with sidecars, overhead, requests of the whole pod and limits, and their figures."""
    pods, figures = [], []
    for name in draw(st.lists(st.sampled_from("abcde"), unique=True, min_size=2, max_size=4)):
        containers = []
        for c in ("c", "d")[: draw(st.integers(1, 2))]:
            asked = draw(st.none() | AMOUNT)
            limit = draw(st.sampled_from([None, asked, "5"]))  # never below the request: no API server admits that
            memory = {} if asked is None else {"memory": asked, "cpu": "1", "ephemeral_storage": draw(AMOUNT)}
            containers.append(container(c, {} if limit is None else {"memory": limit, "cpu": "1"}, **memory))
        spec: dict[str, Any] = {"priority": draw(st.sampled_from([None, -1, 0, 1, 10**9, 2 * 10**9]))}
        if draw(st.booleans()):
            spec["initContainers"] = [container("i", memory=draw(AMOUNT))]
            spec["initContainers"][0]["restartPolicy"] = draw(st.sampled_from([None, "Always"]))
        if draw(st.booleans()):
            spec["overhead"] = {"memory": draw(AMOUNT)}
        if draw(st.integers(0, 3)) == 0:
            spec["resources"] = draw(st.sampled_from([{}, {"requests": {"memory": "2"}}, {"limits": {"memory": "3"}}]))
        pods.append(pod(name, *containers, **spec))
        if draw(st.integers(0, 4)):
            figures.append(
                stats(
                    name,
                    draw(SMALL),
                    draw(SMALL),
                    rootfs=draw(st.tuples(SMALL, SMALL)),
                    logs=draw(st.tuples(SMALL, SMALL)),
                )
            )
    return pods, figures


LAYOUTS = st.sampled_from([SINGLE_DISK, IMAGEFS, SPLIT])


def one_less(one: Ranked, change: Change, signal: str) -> tuple[Pod, PodStats | None]:
    """The pod with one unit less of the change, made without the code that made the change."""
    n = change.new + (1 if change.new < change.old else -1)
    if change.kind == "priority":
        return replace(one.pod, priority=n), one.stats
    if change.kind == "usage":
        if signal in MEMORY_SIGNALS:
            return one.pod, PodStats({"memory": {"workingSetBytes": n}})
        if signal == "pid.available":
            return one.pod, PodStats({"process_stats": {"process_count": n}})
        figures = {"usedBytes": n, "inodesUsed": n}
        kind = "logs" if "logs" in change.stats._raw["containers"][0] else "rootfs"  # type: ignore[union-attr]
        return one.pod, PodStats({"containers": [{kind: figures}]})
    resource = "memory" if signal in MEMORY_SIGNALS else "ephemeral-storage"
    amount = Quantity.of_bytes(n)

    def asking(was: Any) -> Any:
        limits = dict(was.limits)
        if resource in limits:
            limits[resource] = max(limits[resource], amount)
        return replace(was, requests={**was.requests, resource: amount}, limits=limits)

    if change.pod.resources != one.pod.resources:
        return replace(one.pod, resources=asking(one.pod.resources)), one.stats
    containers = [
        was if was == now else asking(was) for was, now in zip(one.pod.containers, change.pod.containers, strict=True)
    ]
    assert containers != list(one.pod.containers) or n == change.old
    return replace(one.pod, containers=containers), one.stats


@given(crowds(), st.sampled_from(ERAS), LAYOUTS, st.data())
def test_a_change_does_move_the_pod_and_one_unit_less_does_not(
    crowd: tuple[list[Pod], list[dict[str, Any]]], name: str, layout: DiskLayout, data: st.DataObject
) -> None:
    rules = era(name)
    signal = data.draw(st.sampled_from(rules.signals))
    order = ranked(*crowd, signal, layout, name)
    at, other_at = data.draw(st.permutations(range(len(order))))[:2]
    one, other = order[at], order[other_at]

    def before(candidate: Pod, figures: PodStats | None) -> bool:
        """Whether it stands before the other one, in an order of the two."""
        known = {p.uid: s for p, s in ((candidate, figures), (other.pod, other.stats)) if s is not None}
        pair = rank_pods(signal, [candidate, other.pod], known, layout, ranker=rules.ranker)
        return pair[0].pod.uid == candidate.uid

    assert before(one.pod, one.stats) == (at < other_at)
    for change in changes(one, other, signal, layout, rules):
        assert before(change.pod, change.stats) != (at < other_at)
        assert before(*one_less(one, change, signal)) == (at < other_at)


@given(crowds(), st.sampled_from(ERAS), st.integers(0, 20), st.data())
def test_no_change_is_missed(
    crowd: tuple[list[Pod], list[dict[str, Any]]], name: str, n: int, data: st.DataObject
) -> None:
    """Whatever number of bytes moves the pod, the change named is no larger."""
    rules = era(name)
    order = ranked(*crowd, name=name)
    at, other_at = data.draw(st.permutations(range(len(order))))[:2]
    one, other = order[at], order[other_at]
    found = {change.kind: change for change in changes(one, other, MEMORY, SINGLE_DISK, rules)}

    def moved(candidate: Pod, figures: PodStats | None) -> bool:
        key = rules.ranker(candidate, figures, MEMORY, SINGLE_DISK, True)[0]
        return (key < other.key) != (one.key < other.key)

    container = one.pod.containers[0]
    limits = {name: max(limit, Quantity.of_bytes(n)) for name, limit in container.limits.items() if name == "memory"}
    asking = {**container.requests, "memory": Quantity.of_bytes(n)}
    alone = replace(container, requests=asking, limits={**container.limits, **limits})
    simple = len(one.pod.containers) == 1 and one.pod.resources is None
    if simple and moved(replace(one.pod, containers=[alone]), one.stats):
        assert found["request"].new <= n if one.key < other.key else found["request"].new >= n
    if moved(replace(one.pod, priority=n), one.stats):
        assert abs(found["priority"].new - one.candidate.priority) <= abs(n - one.candidate.priority)
    if one.candidate.usage is not None and moved(one.pod, PodStats({"memory": {"workingSetBytes": n}})):
        assert abs(found["usage"].new - one.candidate.usage) <= abs(n - one.candidate.usage)


# ---- why a pod is what it is
def test_how_the_class_came_about() -> None:
    both = {"cpu": "1", "memory": "64Mi"}
    cases = [
        (pod("a"), "no container names a request or limit of cpu or memory"),
        (pod("a", container(limits=both, **both)), "requests and limits are the same: cpu 1, memory 64Mi"),
        (pod("a", container(memory="1Mi")), "not Guaranteed: container c has no cpu limit"),
        (pod("a", container(limits=both, memory="1Mi", cpu="1")), "not Guaranteed: memory: 1Mi requested, limit 64Mi"),
        (pod("a", container(memory="1Mi"), resources={}), "spec.resources names no request or limit of cpu or memory"),
        (pod("a", resources={"limits": both}), "not Guaranteed: cpu: 0 requested, limit 1"),
        (replace(pod("a"), qos_class_status="Burstable"), "as its status says (status.qosClass)"),
    ]
    assert [why_class(one) for one, _ in cases] == [text for _, text in cases]
    by_pod = pod("a", container(memory="1Mi"), resources={})
    assert why_class(by_pod, era("kubelet-1.17")) == "not Guaranteed: container c has no cpu limit"


@given(crowds(), st.sampled_from(ERAS))
def test_the_reason_fits_the_class(crowd: tuple[list[Pod], list[dict[str, Any]]], name: str) -> None:
    beginnings = {
        BEST_EFFORT: ("no container", "spec.resources"),
        GUARANTEED: "requests",
        BURSTABLE: "not Guaranteed: ",
    }
    for one in crowd[0]:
        assert why_class(one, era(name)).startswith(beginnings[era(name).qos_class(one)])


def test_how_the_request_came_about() -> None:
    side = {**container("side", memory="8Mi"), "restartPolicy": "Always"}
    first = container("first", memory="100Mi")
    small, overhead = container(memory="64Mi"), {"memory": "1Mi"}
    cases = [
        (pod("a", small), "64Mi: containers 64Mi"),
        (
            pod("a", small, initContainers=[side], overhead=overhead),
            "73Mi: containers 64Mi + sidecars 8Mi + overhead 1Mi",
        ),
        (
            pod("a", small, initContainers=[side, first]),
            "108Mi: 108Mi at a step of the init containers, more than the 72Mi of the running ones",
        ),
        (pod("a", small, resources={"requests": {"memory": "9Mi"}}), "9Mi: 9Mi for the pod"),
        (
            pod("a", small, resources={"limits": {"cpu": "1"}}),
            "0: spec.resources names none, which hides the containers'",
        ),
        (pod("a", overhead=overhead), "0: containers 0"),
    ]
    assert [why_request(one, "memory") for one, _ in cases] == [text for _, text in cases]
    blog = era("kubelet-1.17")
    assert why_request(cases[2][0], "memory", blog).startswith("100Mi: the largest init container's (kubelet-1.17 ")
    assert why_request(cases[1][0], "memory", blog).startswith("64Mi: the containers' together")


@given(crowds())
def test_the_reason_begins_with_the_request_that_is_compared(crowd: tuple[list[Pod], list[dict[str, Any]]]) -> None:
    for one in crowd[0]:
        for resource in ("memory", "ephemeral-storage"):
            assert why_request(one, resource).startswith(f"{CURRENT.request(one, resource)}: ")
