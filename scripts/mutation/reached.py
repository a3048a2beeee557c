"""pytest plugin of `mutate.py`: which test executes which lines of the files MUTATION_TARGETS, into MUTATION_REACHED.

Every test of the session reaches the lines that run at import.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

# A smaller counterexample teaches nothing here, and the same examples give the same answer every time.
settings.register_profile(
    "mutation", deadline=None, database=None, derandomize=True, max_examples=40,
    phases=(Phase.explicit, Phase.generate), suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip

TARGETS = frozenset(map(os.path.abspath, filter(None, os.environ.get("MUTATION_TARGETS", "").split(":"))))
_lines: dict[str, set[int]] = defaultdict(set)
_at_import: dict[str, set[int]] = {}
_reports = list[pytest.TestReport]()


def _line(frame: FrameType, event: str, _argument: object) -> Any:
    if event == "line":
        _lines[frame.f_code.co_filename].add(frame.f_lineno)
    return _line


def _call(frame: FrameType, _event: str, _argument: object) -> Any:
    return _line if frame.f_code.co_filename in TARGETS else None


if TARGETS:
    threading.settrace(_call)
    sys.settrace(_call)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish() -> None:
        _at_import.update({file: set(lines) for file, lines in _lines.items()})

    def pytest_runtest_logreport(report: pytest.TestReport) -> None:
        _reports.append(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
        _lines.clear()
        _reports.clear()
        sys.settrace(_call)
        result = yield
        test = {
            "seconds": sum(report.duration for report in _reports),
            "passed": not any(report.failed for report in _reports),
            "kernel": item.get_closest_marker("kernel") is not None,
            "lines": [
                f"{os.path.relpath(file, item.config.rootpath)}:{line}"
                for file, lines in [*_at_import.items(), *_lines.items()]
                for line in lines
            ],
        }
        # At once: a session that takes too long is ended.
        with open(os.environ["MUTATION_REACHED"], "a") as file:
            file.write(json.dumps({item.nodeid.partition("[")[0]: test}) + "\n")
        return result
