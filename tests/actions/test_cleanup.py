"""The order of a clean-up, where a runtime would have to be caught in the moment between two questions."""

from pathlib import Path
from typing import Self

import pytest

from monitor.actions import cleanup
from monitor.actions.cleanup import CONTAINERS, FAILED, IMAGES, IN_USE, MOST_ITEMS, NOT_TRIED, REMOVED, clean
from monitor.actions.garbage import CONTAINER, Choice, Garbage, Image, Kept, StoreTimeout
from monitor.errors import MonitorError
from monitor.pods.stores import PODMAN, Store
from tests import live


class Scripted:
    """A store in which something happens while it is cleaned up."""

    name = "scripted"

    def __init__(self, idents: list[str]) -> None:
        self.idents, self.uses = idents, set[str]()
        self.trouble: dict[str, MonitorError] = {}
        self.removed: list[str] = []
        self.settled = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def paths(self) -> list[str]:
        return ["/proc/self", "/nonexistent"]

    def dead(self) -> Choice:
        go = tuple(Garbage(CONTAINER, ident, ident, 1) for ident in self.idents)
        return Choice(go, (Kept(CONTAINER, "kept", "restart policy always"),) * (MOST_ITEMS + 1))

    def images(self) -> list[Image]:
        return [Image(ident, (ident,), size=1) for ident in self.idents]

    def used(self) -> set[str]:
        return set(self.uses)

    def check_removal(self) -> None:
        """All is allowed."""

    def remove(self, one: Garbage) -> None:
        if one.id in self.trouble:
            raise self.trouble[one.id]
        self.removed.append(one.id)
        self.uses.add("b")  # a container is made of it, as soon as the first image is gone

    def settle(self) -> None:
        self.settled += 1


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    made = Scripted(["a", "b", "c"])
    monkeypatch.setattr(cleanup, "open_store", lambda *_: made)
    return made


def test_every_key_and_every_fate_is_documented(store: Scripted) -> None:
    text = (live.ROOT / "docs/disks.md").read_text().partition("`outrace cleanup -o json` is")[2].partition("###")[0]
    answer = clean(Store(PODMAN), CONTAINERS, remove=True, within_s=1).to_json()
    rows = (answer, *answer["items"], *answer["kept"], *answer["freed"])
    words = {key for row in rows for key in row} | {cleanup.WOULD_GO, REMOVED, FAILED, IN_USE, NOT_TRIED}
    assert {word for word in words if f"`{word}`" not in text} == set()


def test_an_image_that_is_used_meanwhile_stays(store: Scripted, tmp_path: Path) -> None:
    seen = tmp_path / "seen.json"
    report = clean(Store(PODMAN), IMAGES, remove=True, within_s=1, seen=seen)
    assert (report.fates, report.failed) == ([REMOVED, IN_USE, REMOVED], False)
    assert (store.removed, store.settled) == (["a", "c"], 1)
    assert '"b"' in seen.read_text()
    assert '"a"' not in seen.read_text()  # pulled again, it is new


def test_an_image_that_a_container_names_by_its_digest_meanwhile_stays(store: Scripted) -> None:
    store.images = lambda: [Image(ident, (), (f"x@sha256:{ident}",)) for ident in store.idents]  # type: ignore[method-assign]
    store.used = lambda: {"x@sha256:b"} if store.removed else set()  # type: ignore[method-assign]
    assert clean(Store(PODMAN), IMAGES, remove=True, within_s=1).fates == [REMOVED, IN_USE, REMOVED]


def test_a_failure_is_no_reason_to_leave_the_next_but_silence_is(store: Scripted) -> None:
    store.trouble["a"] = MonitorError("refused")
    report = clean(Store(PODMAN), CONTAINERS, remove=True, within_s=1)
    assert (report.fates, report.failed) == ([FAILED, REMOVED, REMOVED], True)
    assert report.problems == ["container a: refused"]
    store.trouble = {"b": StoreTimeout("does not answer")}
    assert clean(Store(PODMAN), CONTAINERS, remove=True, within_s=1).fates == [REMOVED, FAILED, NOT_TRIED]
    store.trouble["a"] = MonitorError("refused")
    assert store.settled == 2
    clean(Store(PODMAN), CONTAINERS, remove=True, within_s=1)
    assert store.settled == 2  # there is nothing to wait for


def test_a_look_removes_nothing_and_a_report_is_bounded(store: Scripted) -> None:
    store.idents = [str(number) for number in range(MOST_ITEMS + 5)]
    answer = clean(Store(PODMAN), CONTAINERS, remove=False, within_s=1).to_json()
    assert store.removed == []
    assert (answer["count"], answer["bytes"], answer["freed"]) == (MOST_ITEMS + 5, MOST_ITEMS + 5, None)
    assert (len(answer["items"]), len(answer["kept"]), answer["left_out"]) == (MOST_ITEMS, MOST_ITEMS, 6)
