"""A pod made ready to be killed, and an eviction followed to its end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.actions.evict import Eviction
from monitor.actions.victim import Victim
from monitor.kernel import cgroupfs
from tests import live
from tests.descriptors import those_of


@pytest.fixture
def pod() -> Iterator[Path]:
    """Processes are in its leaves only: cgroup v2 has none in a cgroup that hands its controllers down."""
    with live.cgroup("evict") as path:
        for inner in ("c0", "c1", "c2/deep"):
            cgroupfs.make(path / inner)
        yield path


def prepared(pod: Path, version: int) -> Victim:
    victim = Victim("uid", pod, version)
    victim.refresh()
    return victim


def finish(eviction: Eviction) -> None:
    live.until(lambda: eviction.step(0), "the pod to be empty")
    eviction.victim.close()


def descriptors(pod: Path) -> int:
    """How many this process has of processes and of what is in the pod."""
    return those_of("pidfd", str(pod))
