"""The rule for swap, on a tree of cgroup v2 files; and on v1, where memory and swap are counted together."""

from pathlib import Path

import pytest

from monitor.kernel.cgroupfs import Hierarchy
from monitor.side.stall_sizes import Sizes
from tests.limited import write
from tests.side.test_stalls import MIB, Node


@pytest.mark.parametrize("evict", [False, True])
def test_a_full_swap_is_the_pods_that_has_most_of_it(tmp_path: Path, evict: bool) -> None:
    node = Node(tmp_path / "node", f"swap.used>90%,grace=10s{',evict' * evict}")
    node.swapped = {"reader": 30, "hog": 10, "third": 60}
    node.order.remove("third")  # a critical pod: never evicted
    node.swap = 0.85, 128 * MIB
    node.seconds(14)
    assert node.events() == []
    node.swap = 0.95, 128 * MIB
    node.seconds(14)
    (found,) = node.events()
    assert (found.domain, found.pod_name, found.cause, found.why) == ("node", "swap.used", "reader", "swapped")
    assert (found.grew, found.swap, found.share, found.oomd) == (30 * MIB, True, 0.95, True)
    asked = [(one.pod, one.message) for one in node.sent]
    assert asked == [("reader", "95% of swap is in use; ns/reader has 30.0 MiB of it.")] * evict
    node.stalls.acted(node.now_ns, "reader" if evict else "")
    node.swap = 0.5, 128 * MIB
    del node.node.pods["reader"]
    node.seconds(7)
    assert [one.over for one in node.events()] == ["evicted" if evict else "freed"]


def test_systemd_oomd_kills_above_a_line_of_its_own_whatever_memory_pressure_is(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", "swap.used>80%,grace=10s")
    node.full, node.swap = 70.0, (0.85, 128 * MIB)
    node.seconds(35)
    assert [one.oomd for one in node.events()] == [False]
    node.swap = 0.97, 128 * MIB
    node.seconds(2)
    node.swap = 0.5, 128 * MIB
    node.seconds(7)
    assert [(one.over, one.share, one.oomd) for one in node.events()] == [("calm", 0.97, True)]


@pytest.mark.parametrize("swap", [None, (1.0, 128 * MIB)])
def test_a_swap_that_is_not_known_is_no_finding_nor_has_a_pod_with_little_of_it_filled_it(
    tmp_path: Path, swap: tuple[float, int] | None
) -> None:
    node = Node(tmp_path / "node", "swap.used>90%,grace=10s,evict")
    node.swap, node.swapped["reader"] = swap, 6
    node.seconds(15)
    assert [(one.cause, one.why) for one in node.events()] == ([] if swap is None else [(None, "unknown")])
    assert node.sent == []


def test_on_v1_swap_is_what_memory_and_swap_have_more_than_memory(tmp_path: Path) -> None:
    node = Node(tmp_path / "node")
    node.node.hierarchy = Hierarchy(1, tmp_path)
    write(node.root / "hog", {"memory.memsw.usage_in_bytes": 90 * MIB, "memory.usage_in_bytes": 60 * MIB})
    assert Sizes(node.node, node.stalls.figures, list).swapped(["hog", "third", "gone"]) == {"hog": 30 * MIB}


@pytest.mark.parametrize(("left", "over"), [(30, "calm"), (10, "freed")])
def test_how_a_full_swap_ended_is_read_from_swap_not_from_memory(tmp_path: Path, left: int, over: str) -> None:
    """A pod that is swapped out has less memory, and has freed nothing."""
    node = Node(tmp_path / "node", "swap.used>90%,grace=10s")
    node.swapped, node.swap, node.sizes["reader"] = {"reader": 30, "hog": 0, "third": 0}, (0.95, 128 * MIB), (100, 0)
    node.seconds(14)
    node.swap, node.swapped["reader"], node.sizes["reader"] = (0.5, 128 * MIB), left, (1, 0)
    node.seconds(7)
    assert [one.over for one in node.events()][-1] == over


def test_a_swap_that_stays_full_is_acted_on_after_hours_too(tmp_path: Path) -> None:
    """What hot refuses it refuses for a reason that may last: a threshold is met while swap is full."""
    node = Node(tmp_path / "node", "swap.used>90%,grace=10s,evict")
    node.swapped, node.swap, node.takes = {"reader": 30, "hog": 0, "third": 0}, (0.95, 128 * MIB), False
    node.seconds(150)
    node.takes = True
    node.seconds(60)
    assert [one.pod for one in node.sent][:1] == ["reader"]
