"""What the state of the hot process brings about: a line of log where node conditions changed; a look at the victim."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from monitor.kernel.cgroupfs import Hierarchy
from monitor.settings.config import RunConfig
from monitor.side import process_watch
from tests.daemon.harness import STATE
from tests.log_lines import LogLines
from tests.side.parts import Parts


def test_a_start_without_conditions_warns_of_none(tmp_path: Path) -> None:
    """As the messages come over the socket: with lists."""
    parts = Parts(RunConfig(state_dir=str(tmp_path)), Hierarchy(2, tmp_path), 512 << 20)
    handler, log = parts.handler(), LogLines()
    handler.log = log
    for conditions in ([], [], ["MemoryPressure"], ["MemoryPressure"], []):
        assert handler.handle(STATE._replace(conditions=conditions))
    changed = "warning", "node conditions changed"
    assert log.lines == [
        (*changed, {"conditions": ["MemoryPressure"], "before": []}),
        (*changed, {"conditions": [], "before": ["MemoryPressure"]}),
    ]


def test_near_a_threshold_the_next_victim_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doubted: list[str] = []
    parts = Parts(RunConfig(state_dir=str(tmp_path)), Hierarchy(2, tmp_path), 512 << 20)
    processes = parts.processes(doubted.append)
    for now, armed, victim in ((9, False, "a"), (10, True, "a"), (10.9, True, "b"), (11, True, "b"), (15, True, "b"),
                               (16, True, "b"), (30, True, None)):  # fmt: skip
        monkeypatch.setattr(process_watch, "time", SimpleNamespace(monotonic=lambda now=now: now))
        processes.handle(STATE._replace(armed=armed, victim=victim, ready=True))
    assert doubted == ["a", "b", "b"]
