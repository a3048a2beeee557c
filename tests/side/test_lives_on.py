"""The processes that live on in a pod after others killed one of it."""

import os

import pytest

from monitor.side.message_handler import lives_on
from tests.filesystems import Mounts

pytestmark = pytest.mark.kernel


def test_empty_cgroups_by_the_thousand_are_nobody(mounts: Mounts) -> None:
    """A user makes them, and the memory of its dead would not be waited for: another pod went."""
    pod = mounts.cgroup2("unified") / f"outrace-test-lives-{os.getpid()}"
    pod.mkdir()
    below = [pod / str(number) for number in range(1100)]
    try:
        for path in below:
            path.mkdir()
        assert not lives_on(pod)
    finally:
        for path in (*below, pod):
            path.rmdir()
