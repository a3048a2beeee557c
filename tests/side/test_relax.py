"""Raising memory.high of pods that stall at it, on a tree of cgroup v2 files."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monitor.actions.changes import opened
from monitor.actions.ledger import HOT, RELAX, Ledger, attribute_of
from monitor.policy import stall
from monitor.policy.thresholds import parse_thresholds
from tests.side.test_stalls import MIB, Node, S

RULE = "pod>50%,grace=10s,relax"


class Throttled(Node):
    """Three pods on a node of 512 MiB of which 222 are available; "reader" is at a memory.high of 64 MiB."""

    def __init__(
        self, root: Path, *rules: str, enforce: bool = True, hold: bool = False, place: str = "reader"
    ) -> None:
        self.place, self.above = place, 0
        super().__init__(root, *(rules or (RULE,)))
        self.sizes |= {"reader": (64, 0), "hog": (100, 0), "third": (117, 0)}
        config = replace(self.node.config, enforce=enforce, hold=hold, state_dir=str(root / "state"))
        self.node.config, self.node.thresholds = config, parse_thresholds({"memory.available": "112Mi"})
        self.stalls.relaxing._ledger = Ledger(Path(config.state_dir), RELAX)
        self.file.write_text(f"{64 * MIB}\n")

    @property
    def cgroup(self) -> Path:
        return self.root / self.place

    @property
    def file(self) -> Path:
        return self.cgroup / "memory.high"

    @property
    def high(self) -> int:
        """0: none."""
        text = self.file.read_text().strip()
        return 0 if text == "max" else int(text)

    def write(self) -> None:
        super().write()
        (self.cgroup / "memory.events.local").write_text(f"low 0\nhigh {self.above}\nmax 0\n")

    def throttled(self, seconds: int, share: float = 0.9) -> None:
        """It allocates as much as it is allowed, and waits for more: memory pressure, nothing is read again."""
        for _ in range(seconds * 4):
            self.now_ns += S // 4
            self.above += share > 0.5
            self.waits["reader"][0] += int(share * 250_000)
            if share > 0.5 and self.high:
                self.sizes["reader"] = self.high // MIB, 0
            self.write()
            self.stalls.turn(self.now_ns)

    def told(self, text: str) -> list[dict[str, Any]]:
        return [fields for _, message, fields in self.log.lines if message == text]


@pytest.fixture
def node(tmp_path: Path) -> Throttled:
    return Throttled(tmp_path / "node")


@pytest.mark.parametrize("place", ["reader", "reader/c"])
def test_it_is_raised_by_an_eighth_each_five_seconds_after_the_grace(tmp_path: Path, place: str) -> None:
    node = Throttled(tmp_path / "node", place=place)
    node.throttled(9)
    assert node.high == 64 * MIB, "not before the grace is over"
    node.throttled(4)
    assert node.high == 72 * MIB
    node.throttled(5)
    assert node.high == 81 * MIB
    relaxing = node.stalls.relaxing
    assert relaxing.counted == 2
    assert node.told("relaxed")[0] == {
        "pod": "ns/reader",
        "cgroup": str(node.cgroup),
        "high_before": 64 * MIB,
        "high": 72 * MIB,
    }
    steps = [(one.why, one.high_before, one.high) for one in node.events() if one.high]
    assert steps == [("throttled", 64 * MIB, 72 * MIB), ("throttled", 72 * MIB, 81 * MIB)]
    note = json.loads(os.getxattr(node.cgroup, attribute_of(Path(node.node.config.state_dir), RELAX)))
    (change,) = note["changes"]
    assert (change["file"], change["old"], change["why"]) == ("memory.high", str(64 * MIB), "stall")


def test_it_is_put_back_a_minute_after_the_stall_when_the_pod_fits(node: Throttled) -> None:
    node.throttled(13)
    node.throttled(10, share=0.1)
    assert [one.over for one in node.events()][-1] == "relaxed"
    node.throttled(70, share=0.1)
    assert node.high == 72 * MIB, "the old value would stop it again"
    node.sizes["reader"] = 40, 31  # of page cache it can lose what does not fit
    node.throttled(1, share=0.1)
    assert node.high == 64 * MIB
    assert node.told("memory.high of a pod is put back")[0]["outcome"] == "restored"
    assert os.listxattr(node.cgroup) == []
    node.sizes["reader"] = 64, 0
    node.throttled(13)
    assert node.high == 72 * MIB
    node.sizes["reader"] = 40, 0
    node.throttled(66, share=0.1)
    assert node.high == 72 * MIB, "a pod that stalls again keeps it for twice as long"
    node.throttled(64, share=0.1)
    assert node.high == 64 * MIB


@pytest.mark.parametrize("value", [f"{80 * MIB}\n", f"{64 * MIB}\n", "max\n"])
def test_a_value_that_another_program_wrote_stays(node: Throttled, value: str) -> None:
    node.throttled(13)
    node.file.write_text(value)
    node.throttled(15)
    node.sizes["reader"] = 40, 0
    node.throttled(80, share=0.1)
    assert node.file.read_text() == value
    assert [one.over for one in node.events() if one.over] == [stall.CALM]
    assert os.listxattr(node.cgroup) == []


def test_it_is_put_back_when_the_pod_goes_and_when_the_daemon_ends(node: Throttled) -> None:
    node.throttled(13)
    node.stalls.relaxing.close(5)
    assert node.high == 64 * MIB
    node.throttled(10)
    assert node.high == 64 * MIB, "it has ended"
    other = Throttled(node.root.parent / "other")
    other.throttled(13)
    assert other.high == 72 * MIB
    other.node.pods = {"hog": other.node.pods["hog"]}
    other.throttled(1)
    assert other.high == 64 * MIB


@pytest.mark.parametrize("mode", [{"enforce": False}, {"enforce": True, "hold": True}])
def test_in_other_modes_the_log_says_it_once_in_a_stall(tmp_path: Path, mode: dict[str, bool]) -> None:
    node = Throttled(tmp_path / "node", **mode)
    node.throttled(30)
    assert node.high == 64 * MIB
    (line,) = node.told("would relax")
    assert (line["pod"], line["high_before"], line["high"]) == ("ns/reader", 64 * MIB, 72 * MIB)
    assert [one.high for one in node.events()] == [None]
    assert node.stalls.relaxing.counted == 0
    assert os.listxattr(node.cgroup) == []


def _rule_without(node: Throttled) -> None:
    node.stalls._subjects.clear()
    node.stalls._rules = {"pod": stall.parse_rule("pod>50%,grace=10s,evict")}


def _held(node: Throttled) -> None:
    node.node.held = {"reader": None}  # type: ignore[dict-item]


def _held_by_now(node: Throttled) -> None:
    """The helper does not know it yet, or another daemon holds it."""
    with opened(node.root / "reader") as directory:
        Ledger(node.root / "other", HOT).note(directory, {"changes": []})


def _left(node: Throttled) -> None:
    os.setxattr(node.cgroup, attribute_of(Path(node.node.config.state_dir), RELAX), b"{}")


def _not_counted(node: Throttled) -> None:
    node.place = "third"  # its counter stands still


def _unknown(node: Throttled) -> None:
    (node.cgroup / "memory.events.local").unlink()
    node.place = "third"


def _no_machine(node: Throttled) -> None:
    node.node.state = None
    node.stalls.figures.domains = lambda counted=True: {}  # type: ignore[method-assign]


def _short(node: Throttled) -> None:
    """1 MiB is left above the highest line, and half of that is less than a 64th."""
    lines = {"memory.available": "100Mi"}, {"memory.available": "221Mi"}, {"memory.available": "1m"}
    node.node.thresholds = parse_thresholds(*lines)


def _at_its_max(node: Throttled) -> None:
    node.limits["reader"] = str(64 * MIB)


@pytest.mark.parametrize(
    "change",
    [_rule_without, _held, _held_by_now, _left, _not_counted, _unknown, _no_machine, _short, _at_its_max],
    ids=lambda one: one.__name__,
)
def test_what_may_be_wrong_is_not_done(node: Throttled, change: Any) -> None:
    file = node.file
    node.throttled(1)
    change(node)
    node.throttled(30)
    assert file.read_text() == f"{64 * MIB}\n"
    assert node.stalls.relaxing.counted == 0
    names = [attribute_of(Path(node.node.config.state_dir), RELAX)]
    assert [name for name in os.listxattr(file.parent) if name in names] == names * (change is _left)


def test_no_step_takes_more_than_half_of_what_is_available_and_none_passes_memory_max(node: Throttled) -> None:
    node.node.thresholds = parse_thresholds({"memory.available": "215Mi"})  # of 222
    node.throttled(13)
    assert node.high == 64 * MIB + 7 * MIB // 2
    node.node.thresholds = ()
    node.limits["reader"] = str(70 * MIB)
    node.throttled(5)
    assert node.high == 70 * MIB


def test_single_bad_seconds_of_a_stall_raise_nothing(node: Throttled) -> None:
    node.throttled(10)
    for _ in range(6):
        node.throttled(1)
        node.throttled(3, share=0.1)
    assert node.stalls.relaxing.counted <= 1


def test_what_others_got_and_have_not_used_is_not_given_again(node: Throttled) -> None:
    node.throttled(13)
    node.throttled(1)
    assert node.stalls.relaxing._bounds(node.cgroup) == (None, (222 - 8 - 112) * MIB)
    node.sizes["reader"] = 64, 0  # of 72 it may have
    node.write()
    assert node.stalls.relaxing._bounds(node.cgroup) == (None, (222 - 8 - 112) * MIB)
