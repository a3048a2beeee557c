"""The log says that node conditions changed, and nothing where none did."""

from pathlib import Path

from monitor.kernel.cgroupfs import Hierarchy
from monitor.settings.config import RunConfig
from monitor.side.message_handler import MessageHandler
from monitor.side.worker import Worker
from tests.daemon.harness import STATE
from tests.log_lines import LogLines
from tests.side.views import view


def test_a_start_without_conditions_warns_of_none(tmp_path: Path) -> None:
    """As the messages come over the socket: with lists."""
    known = view(RunConfig(state_dir=str(tmp_path)), Hierarchy(2, tmp_path), 512 << 20)
    files, log = Worker("files"), LogLines()
    handler = MessageHandler(known, files, lambda _: None, lambda: None)
    handler.log = log
    for conditions in ([], [], ["MemoryPressure"], ["MemoryPressure"], []):
        assert handler.handle(STATE._replace(conditions=conditions))
    changed = "warning", "node conditions changed"
    assert log.lines == [
        (*changed, {"conditions": ["MemoryPressure"], "before": []}),
        (*changed, {"conditions": [], "before": ["MemoryPressure"]}),
    ]
    files.close(5.0)
