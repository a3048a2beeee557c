"""A pod made ready to be killed, and an eviction followed to its end."""

from pathlib import Path

from monitor.actions.evict import Eviction
from monitor.actions.victim import Victim
from tests import live
from tests.descriptors import those_of


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
