"""What waits to be judged: the newest version of each episode, and the last word of every one."""

import errno
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from monitor.race.episode import State, feed, ongoing
from monitor.race.events import Event
from monitor.settings.config import RunConfig
from monitor.side import judge as judging
from monitor.side.export.log import Log
from monitor.side.incidents import IncidentStore
from monitor.side.judge import Judge
from tests.race.builders import died, episodes, mark
from tests.waiting import until


def of_pods(n: int, kills: int) -> list[Event]:
    """So many kills at limits of their own, in turn in each of so many pods."""
    events: list[Event] = []
    for k in range(kills):
        where = {"scope": "container", "oom_path": f"/kubepods/p{k % n}/main"}
        events += [mark(k * 10, f"p{k % n}", pid=k + 1, **where), died(k * 10 + 1, k + 1)]
    return events


def test_a_flood_is_judged_by_its_newest_and_every_last_word_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 pods, each judged again and again while the disk does not answer: nothing is dropped."""
    hung = threading.Event()
    record = IncidentStore.add
    monkeypatch.setattr(IncidentStore, "add", lambda self, one: (hung.wait(60), record(self, one))[1])
    heard: list[dict[str, Any]] = []
    config = RunConfig(state_dir=str(tmp_path))
    one = Judge(config, Log(), heard.append)
    state, events = State(), of_pods(30, 300)
    since = None
    for event in events:
        state, _ = feed(state, event)
        for found in ongoing(state, since):
            one.submit(found, False)
        since = state.latest_ns
    finals = episodes(*events)
    for found in finals:
        one.submit(found, True)
    hung.set()
    one.close(60)
    assert one.dropped == 0
    assert len(finals) == 30
    stored = {entry["id"]: entry for entry in one.store.list(limit=100)}
    assert len(stored) == 30
    assert {entry["verdict"] for entry in stored.values()} == {"own_limit"}
    assert len({entry["id"] for entry in heard}) == 30


@pytest.mark.parametrize("trouble", ["hangs", "refuses"])
def test_what_the_end_leaves_unstored_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], trouble: str
) -> None:
    over = threading.Event()

    def record(_store: IncidentStore, _incident: Mapping[str, Any]) -> None:
        if trouble == "hangs":
            over.wait(60)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(IncidentStore, "add", record)
    heard: list[dict[str, Any]] = []
    one = Judge(RunConfig(state_dir=str(tmp_path)), Log("json"), heard.append)
    found = list(episodes(*of_pods(3, 3)))
    for episode in found:
        one.submit(episode, True)
    until(lambda: len(heard) == 3 and not one._worker.undone, "all to be judged")
    one.close(2.0)
    log = capfd.readouterr().err  # before its thread goes on to write
    over.set()
    (logged,) = [json.loads(line) for line in log.splitlines() if "the monitor ends before" in line]
    assert logged["unjudged"] == 0
    assert len(logged["incidents"]) == len(found) == 3


def test_a_disk_that_has_room_again_gets_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Refused, and asked to end in the pause before the next try."""
    full, refused = [True], threading.Event()
    record = IncidentStore.add

    def refusing(store: IncidentStore, incident: Mapping[str, Any]) -> None:
        if full[0]:
            refused.set()
            raise OSError(errno.ENOSPC, "No space left on device")
        record(store, incident)

    monkeypatch.setattr(IncidentStore, "add", refusing)
    one = Judge(RunConfig(state_dir=str(tmp_path)), Log("json"), lambda _: None)
    first, last = episodes(*of_pods(2, 2))
    one.submit(first, False)
    assert refused.wait(60)
    full[0] = False
    one.submit(last, True)
    one.close(60)
    assert "ends before" not in capfd.readouterr().err
    assert len(one.store.list(limit=10)) == 2


def test_room_for_all_that_can_be_open() -> None:
    assert State().bounds.open * 4 <= judging._QUEUE
