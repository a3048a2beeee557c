"""Which containers, sandboxes and images may be removed; what is not known for sure to be garbage stays."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from monitor.actions.cleanup import ages_of
from monitor.actions.garbage import (
    EXITED,
    KUBELET_LABEL,
    OTHER,
    RUNNING,
    Choice,
    Container,
    Image,
    Pod,
    dead_containers,
    is_pause,
    unused_images,
)

KUBELETS = {KUBELET_LABEL: "u"}
NEVER = {"outrace/never": "true"}


def container(name: str, state: str = EXITED, attempt: int = 0, pod: str = "p", **more: object) -> Container:
    return Container(f"{name}-{pod}-{attempt}", name, state, pod, (attempt, attempt), **more)


def pod(ident: str = "p", uid: str = "u", alive: bool = False, attempt: int = 0, **labels: object) -> Pod:
    return Pod(ident, uid, f"lab/{ident}", alive, (attempt, attempt), **labels)


def gone(choice: Choice) -> list[str]:
    return [one.id for one in choice.go]


def why(choice: Choice) -> dict[str, str]:
    return {one.name: one.why for one in choice.kept}


def test_all_of_a_dead_pod_goes_the_oldest_first_and_the_pod_last() -> None:
    choice = dead_containers([container("a", attempt=1), container("a"), container("b", size=3)], [pod()])
    assert gone(choice) == ["b-p-0", "a-p-0", "a-p-1", "p"]
    assert choice.kept == ()
    assert (choice.known_size, choice.unknown) == (3, 2)


@pytest.mark.parametrize(
    ("which", "reason"),
    [
        (pod(alive=True), "the last of its name in a pod that runs"),
        (pod(labels=KUBELETS), "the last of its name in a pod of a kubelet"),
    ],
)
def test_of_a_pod_that_may_be_looked_at_the_last_of_each_name_stays(which: Pod, reason: str) -> None:
    """MaxPerPodContainer of the kubelet: 1."""
    dead = [container("a", attempt=n) for n in (0, 2, 1)] + [container("b")]
    choice = dead_containers([*dead, container("c", RUNNING)], [which])
    assert gone(choice) == ["a-p-0", "a-p-1"]
    assert why(choice) == {"a": reason, "b": reason}


def test_a_pod_lives_by_any_of_its_sandboxes() -> None:
    """A sandbox that failed, and its successor."""
    choice = dead_containers(
        [container("a"), container("a", RUNNING, 1, "q")], [pod(), pod("q", alive=True, attempt=1)]
    )
    assert gone(choice) == []
    choice = dead_containers(
        [container("a"), container("a", attempt=1, pod="q")], [pod(), pod("q", alive=True, attempt=1)]
    )
    assert gone(choice) == ["a-p-0", "p"]


@pytest.mark.parametrize(
    ("one", "pods", "reason"),
    [
        (container("a", OTHER), [pod()], "it has not exited"),  # created, paused, unknown
        (container("a", pod="gone"), [], "its pod is not known"),
        (container("a", keep="restart policy always"), [pod()], "restart policy always"),
        (container("a", labels=NEVER), [pod()], "label outrace/never"),
        (container("a", labels={"outrace/never": "yes"}), [pod()], "label outrace/never"),  # whatever was meant
        (container("a"), [pod(labels=NEVER)], "label outrace/never"),
    ],
)
def test_what_may_be_wanted_stays_and_its_pod_with_it(one: Container, pods: Sequence[Pod], reason: str) -> None:
    choice = dead_containers([one], list(pods))
    assert gone(choice) == []
    assert why(choice) == {"a": reason}


def test_a_container_of_no_pod_goes_by_itself() -> None:
    assert gone(dead_containers([container("a", pod="", labels={"outrace/never": "false"})], [])) == ["a--0"]


def test_in_podman_nothing_of_a_pod_that_runs_goes() -> None:
    choice = dead_containers([container("a"), container("a", attempt=1)], [pod(alive=True)], last=False)
    assert gone(choice) == []
    assert set(why(choice).values()) == {"its pod runs"}


def test_the_newest_sandbox_of_a_kubelets_pod_stays() -> None:
    choice = dead_containers([], [pod("old", labels=KUBELETS), pod("new", attempt=1, labels=KUBELETS), pod("x", "v")])
    assert gone(choice) == ["old", "x"]
    assert why(choice) == {"lab/new": "the newest sandbox of a pod of a kubelet"}


# --- images ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("used", ["sha256:1", "1", "app:1", "app@sha256:9"])
def test_an_image_is_used_by_whatever_name_a_container_calls_it(used: str) -> None:
    image = Image("sha256:1", ("app:1",), ("app@sha256:9",))
    assert gone(unused_images([image, Image("2", ())], {used})) == ["2"]
    assert gone(unused_images([image], {"app:2"})) == ["sha256:1"]


def test_images_that_are_not_ours_to_remove_stay() -> None:
    images = [Image("1", ("a",), keep="pinned"), Image("2", ("b",), labels=NEVER), Image("3", ("c", "d"), size=7)]
    choice = unused_images(images, ())
    assert [(one.id, one.names, one.size) for one in choice.go] == [("3", ("c", "d"), 7)]
    assert why(choice) == {"a": "pinned", "b": "label outrace/never"}


def test_an_image_that_has_just_come_stays() -> None:
    """Its container may be about to be made: imageMinimumGCAge of the kubelet."""
    images = [Image(ident, (ident,)) for ident in ("old", "new", "unheard")]
    choice = unused_images(images, (), {"old": 120.0, "new": 119.9})
    assert gone(choice) == ["old"]
    assert set(why(choice)) == {"new", "unheard"}
    assert gone(unused_images(images, ())) == ["old", "new", "unheard"]


def test_the_image_of_sandboxes_is_known_by_its_name() -> None:
    for name in ("registry.k8s.io/pause:3.9", "pause", "k8s.gcr.io/pause@sha256:0", "localhost/podman-pause:4.3.1-0"):
        assert is_pause([name]), name
    assert not is_pause(["pause/app:1", "unpause:1", ""])


# --- when images were first seen --------------------------------------------------------------------------------------
def test_images_grow_old_from_the_look_that_saw_them_first(tmp_path: Path) -> None:
    seen, problems = tmp_path / "seen.json", list[str]()
    assert ages_of(["a"], seen, 1000.0, problems) == {"a": 1000.0}  # without a file all are old, as to a kubelet
    assert ages_of(["a", "b"], seen, 1010.0, problems) == {"a": 1010.0, "b": 0.0}
    assert ages_of(["a", "b"], seen, 1130.0, problems) == {"a": 1130.0, "b": 120.0}
    assert ages_of(["a"], seen, 1131.0, problems) == {"a": 1131.0}  # b was removed,
    assert ages_of(["b"], seen, 1132.0, problems) == {"b": 0.0}  # and pulled again
    assert ages_of(["b"], seen, 900.0, problems) == {"b": 0.0}  # the clock was set back
    assert problems == []


@pytest.mark.parametrize("text", ["", "[]", "null", '{"a": NaN}', '{"a": -1}', '{"a": "x"}', '{"a": null, "b": 0'])
def test_a_file_that_cannot_be_read_makes_images_new(tmp_path: Path, text: str) -> None:
    seen, problems = tmp_path / "seen.json", list[str]()
    seen.write_text(text)
    assert ages_of(["a"], seen, 1000.0, problems) == {"a": 0.0}
    assert json.loads(seen.read_text()) == {"a": 1000.0}
    assert all(problem.startswith(str(seen)) for problem in problems)


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    problems: list[str] = []
    assert ages_of(["a"], tmp_path / "none" / "seen.json", 1000.0, problems) == {"a": 0.0}, "no image would ever be new"
    assert len(problems) == 1
    assert "No such file" in problems[0]
