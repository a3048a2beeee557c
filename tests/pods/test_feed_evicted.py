"""What a feed reports of pods that were evicted."""

from typing import Any

from monitor.pods.feed import Known, PodFeed, known

MESSAGE = "The node was low on resource: memory. "


class Feed(PodFeed):
    """Nobody is asked."""

    def _run(self) -> None:
        return


def pod(phase: str, reason: str = "", uid: str = "u1") -> Known:
    status = {"phase": phase, "reason": reason, "message": MESSAGE if reason else ""}
    made: Any = {"metadata": {"name": "web", "namespace": "shop", "uid": uid}, "spec": {}, "status": status}
    found = known("test", made)
    assert found is not None
    return found


def heard(*steps: Any) -> list[tuple[str, str, str]]:
    """Each step is all the pods, or one that changed."""
    feed, found = Feed("test"), list[tuple[str, str, str]]()
    feed.on_evicted = lambda *one: found.append(one)
    for step in steps:
        if isinstance(step, Known):
            feed.put(step)
        else:
            feed.replace_all({one.uid: one for one in step})
    return found


RUNNING, EVICTED = pod("Running"), pod("Failed", "Evicted")


def test_a_pod_that_ran_and_is_evicted_is_reported_once() -> None:
    once = [("u1", "shop/web", MESSAGE)]
    assert heard([RUNNING], EVICTED, EVICTED) == once
    assert heard([RUNNING], [EVICTED], [EVICTED]) == once
    assert heard([RUNNING], [EVICTED], EVICTED) == once


def test_one_that_was_found_so_is_not() -> None:
    assert heard([EVICTED]) == []
    assert heard([RUNNING], [], [EVICTED]) == []


def test_one_that_the_kubelet_did_not_admit_never_ran() -> None:
    assert heard([pod("Pending")], EVICTED) == []


def test_one_that_failed_by_itself_was_not_evicted() -> None:
    assert heard([RUNNING], pod("Failed")) == []
    assert heard([RUNNING], pod("Succeeded")) == []


def test_a_pod_that_is_asked_to_end_is_reported_once() -> None:
    feed, found = Feed("test"), list[str]()
    feed.on_ending = found.append
    ending = pod("Running")
    ending.object["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    feed.replace_all({"u1": RUNNING})
    feed.put(ending)
    feed.put(ending)
    feed.replace_all({"u1": ending})
    assert found == ["u1"]
    fresh = Feed("test")
    fresh.on_ending = found.append
    fresh.replace_all({"u1": ending})  # so when it was first seen: this process may be another one
    fresh.replace_all({"u1": ending})
    assert found == ["u1", "u1"]
    cached = Feed("test")
    cached.on_ending = found.append
    cached._pods = {"u1": ending}
    cached.replace_all({"u1": ending})
    assert found == ["u1", "u1", "u1"]
