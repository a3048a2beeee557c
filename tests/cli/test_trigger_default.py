"""Which trigger `outrace run` has where none is given: the kernel's, where the hot process would wake up late."""

import os
from dataclasses import replace
from typing import Any

import pytest

from monitor.cli.run import with_trigger
from monitor.kernel.sched import refuses_realtime
from monitor.settings.read import read


@pytest.mark.parametrize(
    ("given", "refuses", "expected"),
    [
        ({"enforce": True}, True, "kernel"),
        ({"enforce": True}, False, "user"),
        ({}, True, "user"),
        ({"mode": "hold"}, True, "user"),
        ({"enforce": True, "trigger": "user"}, True, "user"),
        ({"enforce": True, "hard-grace": "5s"}, True, "user"),
        ({"enforce": True, "evict-by": "api", "pods": "apiserver"}, True, "user"),
        ({"enforce": True, "hooks": "poll"}, True, "user"),
    ],
)
def test_the_kernel_kills_where_the_hot_process_gets_no_real_time(
    given: dict[str, Any], refuses: bool, expected: str
) -> None:
    config = read(given).config
    found = with_trigger(replace(config, rung="poll") if "hooks" in given else config, lambda: refuses)
    assert found.trigger == expected


def test_the_question_leaves_the_scheduling_as_it_was() -> None:
    before = os.sched_getscheduler(0), os.sched_getparam(0).sched_priority
    refuses_realtime()
    assert (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority) == before
