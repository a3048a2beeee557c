"""The side's end of the socket for commands: what its answers may cost, and where it may be. Live:
tests/daemon/test_daemon_socket.py.
"""

import os
from pathlib import Path

import pytest

from monitor.link.daemon_socket import check_directory
from monitor.side.daemon_socket import CPU_SHARE, Paced
from monitor.side.export.http import Response, text


class Clock:
    """Of one thread that computes and sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cpu = 0.0

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.cpu += seconds

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def paced(clock: Clock, cost: float, fails: bool = False) -> Paced:
    def route(_accept: str) -> Response:
        clock.work(cost)
        if fails:
            raise OSError
        return text(200, "ok")

    return Paced(route, lambda: clock.now, lambda: clock.cpu, clock.sleep)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("cost", [0.0001, 0.01, 0.5])
def test_a_flood_of_requests_gets_no_more_than_its_share_of_a_cpu(cost: float, fails: bool) -> None:
    clock = Clock()
    answer = paced(clock, cost, fails)
    for _ in range(101):
        if fails:
            with pytest.raises(OSError):
                answer("")
        else:
            assert answer("").status == 200
    # The first is answered at once: 100 pauses between 101 answers.
    assert clock.now == pytest.approx((100 / CPU_SHARE + 1) * cost)


def test_who_asks_once_a_second_does_not_wait() -> None:
    clock = Clock()
    answer = paced(clock, 0.01)
    for second in range(10):
        clock.now = float(second)
        answer("")
        assert clock.now == pytest.approx(second + 0.01)


@pytest.mark.kernel  # chown needs root
@pytest.mark.parametrize(
    ("mode", "owner", "problem"),
    [
        (0o700, 0, ""),
        (0o755, 0, ""),
        (0o775, 0, "mode 775"),
        (0o702, 0, "mode 702"),
        (0o1777, 0, "mode 1777"),
        (0o700, 65534, "belongs to user 65534"),
    ],
)
def test_only_root_may_be_able_to_put_a_socket_there(tmp_path: Path, mode: int, owner: int, problem: str) -> None:
    os.chown(tmp_path, owner, owner)
    tmp_path.chmod(mode)
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        if problem:
            with pytest.raises(OSError, match=problem):
                check_directory(directory)
        else:
            check_directory(directory)
    finally:
        os.close(directory)
