"""After a victim's last process is gone its memory may still be coming back: nobody else dies for that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monitor.lab.node import MIB, LabNode
from tests import live
from tests.daemon.hot_node import decided, evicted, hard

pytestmark = pytest.mark.kernel


@pytest.fixture
def node() -> Iterator[LabNode]:
    with LabNode("test-patience", 256 * MIB) as made:
        yield made
        assert made.oom_kills() == 0, "the OOM killer was first"


def test_page_tables_of_the_dead_are_waited_for(node: LabNode) -> None:
    """They are freed after a grace period of RCU: the last process was gone 24 ms after its SIGKILL and had given back
    nothing, and the next pod was evicted 0.5 ms later, for memory that was all back 50 ms after that."""
    tables, innocent = node.add_pod("tables"), node.add_pod("innocent")
    with live.daemon(node, "--enforce", *hard(64)) as daemon:
        calm = live.filled(node, innocent, 40)
        hog = node.start_hog(tables, kind="tables", mib=220)
        hog.go()
        _, end = evicted(daemon, tables)
        assert hog.wait() < 0
        live.ended(daemon)
        assert decided(daemon) == ["tables"]
        assert calm.process.poll() is None
        assert end["freed"] > 100 * MIB, "what came back in the end"
