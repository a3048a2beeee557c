"""What the hot process and threads of the helper report reaches the reducer, and delays evictions for stalls."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monitor.kernel import cgroupfs, meminfo
from monitor.kernel.kmsg import LoggedKill
from monitor.kernel.wire import OomEvent
from monitor.link.messages import Gone
from monitor.race.events import KubeletEvicted
from monitor.settings.config import RunConfig
from monitor.side.races import Races
from tests.daemon.harness import DECISION
from tests.race.builders import stalled
from tests.side.parts import Parts


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Parts, Races, list[Any]]:
    parts = Parts(RunConfig(state_dir=str(tmp_path)), cgroupfs.detect(), meminfo.mem_total())
    races, found = parts.races(), list[Any]()
    monkeypatch.setattr(races.event_builder, "handle", found.append)
    return parts, races, found


def test_what_threads_report_is_handled_as_messages_are(heard: tuple[Parts, Races, list[Any]]) -> None:
    parts, races, found = heard
    evicted = KubeletEvicted(1, "uid", "ns/pod", "The node was low on resource: memory.")
    gone = Gone(**dict.fromkeys(Gone._fields))
    decided = DECISION._replace(observed=False)
    for report, acts in ((stalled(0), False), (evicted, True), (gone, True), (DECISION, False), (decided, True)):
        races.stalls._acted_ns = before = -1
        if hasattr(report, "_fields"):
            races.handle(report)
        else:
            parts.inbox.report(report)
            races.turn()
        assert found.pop() == report
        assert (races.stalls._acted_ns != before) is acts, report
    assert [uid for _, uid in races.stalls._evicted] == [decided.pod]


def test_a_kill_that_the_kernels_log_has_is_confirmed(
    heard: tuple[Parts, Races, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, races, _ = heard
    confirmed, kill = list[Any](), LoggedKill(OomEvent("mark", 1, victim_pid=4711), None)
    monkeypatch.setattr(races.event_builder, "logged", confirmed.append)
    monkeypatch.setattr(races, "_kmsg", SimpleNamespace(kills=lambda: iter([None, kill])))
    races.read_log()
    assert confirmed == [kill]
