"""`outrace unload` undoes what a killed daemon changed in the kernel."""

from pathlib import Path

import pytest

from monitor.actions.changes import ChangeJournal
from monitor.kernel import cgroupfs
from monitor.lab.node import LabNode
from tests import live
from tests.daemon.hot_node import hot_node

pytestmark = [pytest.mark.kernel, pytest.mark.previous]

node = live.fixture(hot_node)
FILE = "memory.max" if cgroupfs.detect().version == 2 else "memory.limit_in_bytes"


def test_unload_sets_back_what_a_killed_daemon_left(node: LabNode, tmp_path: Path) -> None:
    cgroup = cgroupfs.make(node.cgroup / "pod")
    before = (cgroup / FILE).read_text()
    ChangeJournal(tmp_path).change(cgroup, FILE, str(32 << 20), "uid", "test")
    assert (cgroup / FILE).read_text() == f"{32 << 20}\n"
    undone = live.outrace("unload", "--state-dir", str(tmp_path))
    assert undone.returncode == 0, undone.stderr
    assert f"{cgroup}/{FILE} (test): restored" in undone.stderr
    assert (cgroup / FILE).read_text() == before
