"""A runaway service in a tree as systemd makes it: it goes, what the machine runs on stays. In a node of its own."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from monitor.lab.child import Child
from monitor.lab.node import LabNode
from tests import live
from tests.daemon.hot_node import hard, hot_node, up_to

pytestmark = [pytest.mark.kernel, pytest.mark.newest]
SERVICES = ("--pods", "services")
SESSION = "user.slice/user-1000.slice/session-3.scope"

node = live.fixture(hot_node)


def grown(node: LabNode, path: str, mib: int) -> Child:
    """A process in a unit's cgroup."""
    made = live.hog_at(node, path, mib=mib)
    made.go()
    made.expect("grown")
    return made


def test_a_runaway_service_goes_and_what_the_machine_runs_on_stays(node: LabNode, tmp_path: Path) -> None:
    stay = [
        grown(node, path, mib)
        for path, mib in (
            ("system.slice/ssh.service", 24),
            ("system.slice/dbus.service", 4),
            (SESSION, 16),
            ("system.slice/app.service", 8),
            ("system.slice/omitted.service", 8),
            ("system.slice/named.service", 8),
        )
    ]
    with contextlib.suppress(OSError):  # before 5.7: it is one of the least then, and stays too
        os.setxattr(node.cgroup / "system.slice/omitted.service", "user.oomd_omit", b"1")
    own = tmp_path / "outrace.yaml"
    own.write_text('services:\n  "system/named*": {never: true}\n')
    runaway = live.hog_at(node, "system.slice/batch.service", mib=up_to(node, 112))  # of 128, however late
    with live.daemon(node, *hard(32), *SERVICES, "--config", str(own), "--enforce") as daemon:
        found = live.message(daemon, "starting")
        assert (found["because"], found["pods"], found["mode"]) == ("as given", "services", "enforce")
        live.message(daemon, "pod found", pod="system/batch.service")
        runaway.go()
        live.message(daemon, "evicted", pod="system/batch.service")
        assert runaway.wait() == -signal.SIGKILL
        assert [record["pod"] for record in live.messages(daemon, "evicting")] == ["system/batch.service"]
        names = [name for name in daemon.metrics() if "app.service" in name]
        assert names
        assert all('namespace="system"' in name for name in names)
    assert [one.process.poll() for one in stay] == [None] * len(stay)
