"""The helper ends a hot process that hangs, and no other."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from monitor.side.health import HotWatch


def watch(pid: int, loops: int, lives: bool, kill: Any = None) -> tuple[HotWatch, dict[str, int]]:
    stats = {"loops": loops}
    health: Any = SimpleNamespace(figures=SimpleNamespace(stats=stats), hot_lives=lambda: lives)
    return HotWatch(pid, health, MagicMock(), kill), stats


def test_one_that_hangs_is_killed_at_the_third_look() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"]) as hot:
        watching, _ = watch(hot.pid, 7, lives=False)
        watching.look()  # the first knows no number of turns from before
        for _ in range(2):
            watching.look()
        assert hot.poll() is None
        watching.look()
        assert hot.wait(60) == -signal.SIGKILL
    watching.look()  # it is gone: nothing is killed, and nothing raised


@pytest.mark.parametrize(("loops", "looks"), [(7, 4), (0, 9)])
def test_a_start_has_three_minutes(loops: int, looks: int) -> None:
    killed = MagicMock()
    watching, _ = watch(os.getpid(), loops, lives=False, kill=killed)
    for _ in range(looks - 1):
        watching.look()
    killed.assert_not_called()
    watching.look()
    killed.assert_called_once()


@pytest.mark.parametrize("lives", [False, True])
def test_one_that_turns_or_answers_is_left_alone(lives: bool) -> None:
    """A late answer is none, though it turns."""
    killed = MagicMock()
    watching, stats = watch(os.getpid(), 1, lives, kill=killed)
    for _ in range(30):
        stats["loops"] += not lives
        watching.look()
    killed.assert_not_called()
