"""The helper looks for stalls, on a tree of cgroup v2 files."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monitor.kernel import pressure
from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods.model import FoundPod
from monitor.race.events import Stalled
from monitor.settings.config import RunConfig
from monitor.side.stalls import Stalls
from tests.limited import write
from tests.log_lines import LogLines
from tests.policy.builders import pod
from tests.side.parts import Parts

S, MIB = 10**9, 1 << 20


class Node:
    """A node of files with two pods, and what `Stalls` finds there second by second."""

    def __init__(self, root: Path, *rules: str) -> None:
        self.root, self.now_ns = root, 100 * S
        self.swap: tuple[float, int] | None = None  # used, bytes
        self.swapped = {"reader": 0, "hog": 0, "third": 0}
        self.waits: dict[str, list[int]] = {name: [0, 0, 0, 0] for name in ("reader", "hog", "third", "")}
        # MiB that reclaim cannot take, and files; of pods, and outside of them.
        self.sizes = {"reader": (10, 80), "hog": (1, 0), "third": (1, 0), "": (9, 10)}
        self.limits = {"reader": "max", "hog": "max"}
        self.full = 0.0  # avg10 of memory pressure, percent
        self.log = LogLines()
        config = RunConfig(node_cgroup=str(root), stall=rules or ("pod>50%,grace=10s",))
        parts = Parts(config, Hierarchy(2, root.parent), 512 * MIB, log=self.log)
        self.node, self.reported = parts.node, list[Stalled]()
        self.sent: list[Any] = []
        self.takes, self.order = True, ["hog", "third", "reader"]
        self._written: dict[str, dict[str, int | str]] = {}
        self.refills = False  # a pod that reads pages again has them then
        self.passed = self.passing = 0  # pages of files that some pod read once; in a quarter of a second
        self.node.pods = {name: self._pod(name) for name in ("reader", "hog", "third")}
        self.node.synced = True
        self.write()
        about = self.log, self.reported.append, self._send, lambda: self.order, self._waited, lambda: self.swap
        self.stalls = Stalls(self.node, parts.figures, *about, passed=lambda: self.passed)

    def _send(self, message: Any) -> bool:
        if self.takes:
            self.sent.append(message)
        return self.takes

    def _waited(self) -> pressure.Waited:
        memory, io, _, _ = map(sum, zip(*self.waits.values(), strict=True))
        return memory, io

    def _pod(self, name: str) -> FoundPod:
        return FoundPod(replace(pod(name), uid=name), self.root / name, {"c": self.root / name / "c"})

    def write(self) -> None:
        for name, (memory, io, back, taken) in self.waits.items():
            place = self.root / name
            full = f"full avg10={self.full:.2f} avg60=0.00 avg300=0.00 total=0"
            kept, cache = self.sizes[name] if name else map(sum, zip(*self.sizes.values(), strict=True))
            files: dict[str, int | str] = {
                "memory.pressure": f"some avg10=0.00 avg60=0.00 avg300=0.00 total={memory}\n{full}",
                "io.pressure": f"some avg10=0.00 avg60=0.00 avg300=0.00 total={io}\nfull total=0",
                "memory.stat": f"anon {kept * MIB}\nfile {cache * MIB}\ninactive_file {cache * MIB}\nactive_file 0\n"
                f"workingset_refault_anon 0\nworkingset_refault_file {back}\npgsteal {taken}",
                "memory.current": (kept + cache) * MIB,
                "memory.max": self.limits.get(name, "max"),
                "memory.swap.current": self.swapped.get(name, 0) * MIB,
            }
            if files == self._written.get(name):
                continue
            self._written[name] = files
            for at in (place, *([place / "c"] if name else [])):
                for file in files:
                    (at / file).unlink(missing_ok=True)  # written anew nothing is flushed: 3 s of tests, not 30
                write(at, files if (at / "memory.high").exists() else {**files, "memory.high": "max"})

    def seconds(self, number: int = 1, **shares: float) -> None:
        """So many seconds in which pods waited for io for that share, and read again what reclaim took."""
        for _ in range(4 * number):
            self.now_ns += S // 4
            self.passed += self.passing
            for name, share in shares.items():
                key = "" if name == "machine" else name
                waits = self.waits[key]
                waits[1] += int(share * 250_000)
                waits[2] += int(share * 400)
                waits[3] += int(share * 400)
                kept, cache = self.sizes[key]
                self.sizes[key] = kept, cache + self.refills
            self.write()
            self.stalls.turn(self.now_ns)

    def quiet(self) -> None:
        """Sizes are known, and nothing stalls."""
        self.seconds(2)

    def displace(self, mib: int) -> None:
        """Then a pod has so much that reclaim cannot take, and half of another's files are gone."""
        self.quiet()
        self.sizes |= {"hog": (mib, 0), "reader": (10, 40)}

    def cause_of(self, name: str) -> str:
        """Of its stall; "" without one."""
        found = self.stalls._subjects[name].cause
        return "" if found is None else found.uid

    def events(self) -> list[Any]:
        return [self.reported.pop(0) for _ in list(self.reported)]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node")


@pytest.fixture
def acting(tmp_path: Path) -> Node:
    return Node(tmp_path / "node", "pod>50%,grace=10s,evict")


def test_a_stalled_pod_and_its_cause_are_named_at_once_and_reported_after_the_grace(node: Node) -> None:
    node.seconds(6, reader=0.05)
    assert node.stalls.shares["reader"] < 0.1
    node.sizes |= {"hog": (91, 0), "reader": (10, 47)}
    for seconds in range(1, 12):
        node.seconds(reader=0.9)
        named = node.cause_of("reader")
        if seconds == 3:
            assert named == "hog", "named within 3 s of the loss of speed"
        if seconds < 9:
            assert node.events() == []
    _, text, line = node.log.lines[0]
    about = {"pod": "ns/reader", "cause": "ns/hog", "why": "grew", "lacks": 33 * MIB, "grew": 90 * MIB}
    assert (text, line) == ("a pod waits for memory that it had", {**about, "share": line["share"]})
    (found,) = node.events()
    assert isinstance(found, Stalled)
    assert (found.domain, found.pod_name, found.cause_name, found.why) == (
        "/node/reader",
        "ns/reader",
        "ns/hog",
        "grew",
    )
    assert (found.lacks, found.grew, found.swap) == (33 * MIB, 90 * MIB, False)
    assert (found.ts_ns - found.since_ns) / S == pytest.approx(10, abs=1)
    assert node.stalls.counted == 1
    node.seconds(7, reader=0.1)
    (over,) = node.events()
    assert over == replace(found, ts_ns=over.ts_ns, share=over.share, over="calm")
    assert over.share > 0.8
    assert node.cause_of("reader") == ""


@pytest.mark.parametrize(("full", "seconds", "oomd"), [(61.0, 32, True), (61.0, 28, False), (59.0, 40, False)])
def test_a_stall_says_whether_systemd_oomd_would_have_killed(node: Node, full: float, seconds: int, oomd: bool) -> None:
    node.displace(90)
    node.seconds(12, reader=0.9)
    node.full = full
    node.seconds(seconds, reader=0.9)
    node.full = 5.0
    node.seconds(2, reader=0.9)
    node.seconds(8)
    *_, last = node.events()
    assert (last.over, last.full, last.oomd) == ("calm", full / 100, oomd)


def test_a_pod_at_its_own_limit_is_its_own_cause(node: Node) -> None:
    node.limits["reader"] = str(91 * MIB)
    node.seconds()
    node.sizes["hog"] = (91, 0)
    node.seconds(14, reader=0.8)
    (found,) = node.events()
    assert (found.cause, found.why) == ("reader", "own_limit")


@pytest.mark.parametrize(
    ("grew", "limit", "asked", "over"),
    [
        pytest.param("hog", "max", 2, "evicted", id="enforce"),
        pytest.param("hog", "max", 2, "freed", id="observed-or-refused"),
        pytest.param("reader", "max", 0, "freed", id="grew-itself"),
        pytest.param("hog", str(50 * MIB + 4096), 0, "calm", id="own-limit"),
        pytest.param("", "max", 0, "calm", id="no-cause"),
    ],
)
def test_hot_is_asked_to_evict_the_pod_that_grew_and_no_other(
    acting: Node, grew: str, limit: str, asked: int, over: str
) -> None:
    acting.quiet()
    acting.sizes["reader"] = (10, 40)
    if grew:
        acting.sizes[grew] = (101, acting.sizes[grew][1])
    acting.limits["reader"] = limit
    acting.seconds(9, reader=0.9)
    assert acting.sent == [], "not before the grace is over"
    acting.seconds(34, reader=0.9)
    assert [one.pod for one in acting.sent] == [grew] * asked
    assert asked in (0, 2), "again after 30 s, not earlier"
    if over == "evicted":
        acting.stalls.acted(acting.now_ns, "hog")
    acting.sizes |= {"hog": (1, 0), "reader": (9, 40)}
    acting.seconds(31, reader=0.9)
    assert len(acting.sent) == asked, "it has freed the memory, or is another process by now"
    acting.seconds(7)
    assert [found.over for found in acting.events()][-1] == over
    if asked:
        waits = "ns/reader waits for memory that it had, up to 90% of the time"
        assert acting.sent[0].message == f"{waits}; ns/hog grew by 100 MiB."


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node.sizes.update(hog=(500, 0)),  # it has freed what it took
        lambda node: node.order.remove("hog"),  # it is never evicted
        lambda node: setattr(node, "refills", True),
        lambda node: node.limits.update(reader=str(50 * MIB + 4096)),  # the reader is at its own
        lambda node: node.stalls.acted(node.now_ns, "third"),  # another pod is evicted
    ],
)
def test_no_pod_is_evicted_for_a_stall_if_that_may_be_wrong_by_now(
    acting: Node, change: Callable[[Node], None]
) -> None:
    acting.sizes["hog"] = (500, 0)
    acting.displace(600)
    acting.seconds(9, reader=0.9)
    change(acting)
    acting.seconds(5, reader=0.9)
    assert acting.sent == []
    assert acting.cause_of("reader") == "hog", "it stays the one that caused it"


@pytest.mark.parametrize(("grew", "passing", "why"), [(30, 200, "files"), (30, 160, "grew"), (300, 200, "grew")])
def test_no_pod_is_evicted_if_files_that_are_read_once_displace_those_of_another(
    acting: Node, grew: int, passing: int, why: str
) -> None:
    acting.displace(1 + grew)
    acting.passing = passing  # of 360 that the reader reads again
    acting.seconds(34, reader=0.9)
    assert bool(acting.sent) == (why == "grew")
    assert [(event.why, event.cause) for event in acting.events()] == [(why, "hog" if why == "grew" else None)]
    assert len(acting.log.lines) <= 3, "once for each cause"


def test_without_evict_files_are_the_cause_too(node: Node) -> None:
    node.displace(31)
    node.passing = 400
    for _ in range(20):
        node.seconds(reader=0.9)
        node.passing = 400 - node.passing  # in every other second
    assert [event.why for event in node.events()] == ["files"]


def test_the_pod_that_has_the_memory_by_then_is_evicted(acting: Node) -> None:
    acting.displace(40)
    acting.seconds(5, reader=0.9)
    assert acting.cause_of("reader") == "hog"
    acting.sizes["third"] = (400, 0)
    acting.seconds(9, reader=0.9)
    assert [one.pod for one in acting.sent] == ["third"]
    assert [found.cause for found in acting.events()] == ["third"]


def test_a_stall_that_may_be_over_evicts_no_pod(acting: Node) -> None:
    acting.displace(100)
    acting.seconds(9, reader=1)
    acting.seconds(3, reader=0.1)  # the mean over the grace is above the line
    assert acting.stalls.counted == 1
    assert acting.sent == []


@pytest.mark.parametrize("kind", ["amid", "late", "lost nothing", "lost no files", "in its place"])
def test_a_guess_evicts_no_pod(acting: Node, kind: str) -> None:
    """A helper that begins amid a stall does not know what was lost; nor what a pod had that it sees late. Files that
    never fitted are not lost. A pod that takes the place of another took nothing.
    """
    if kind == "amid":
        acting.sizes["reader"] = (10, 40)
        acting.seconds(reader=0.9)
        acting.sizes["hog"] = (100, 0)
    elif kind == "late":
        acting.sizes["hog"] = (100, 0)
        late = acting.node.pods.pop("hog")
        acting.quiet()
        acting.sizes["reader"] = (10, 40)
        acting.node.pods["hog"] = late
    elif kind == "in its place":
        acting.sizes["third"] = (100, 0)
        late = acting.node.pods.pop("hog")
        acting.quiet()
        acting.sizes |= {"reader": (10, 40), "third": (0, 0), "hog": (0, 0)}
        acting.node.pods = {"reader": acting.node.pods["reader"], "hog": late}
        acting.seconds()
        acting.sizes["hog"] = (100, 0)
    else:
        acting.sizes["reader"] = (90 if kind == "lost no files" else 10, 80)
        acting.quiet()
        acting.sizes |= {"hog": (100, 0), "reader": (10, 80)}
    acting.seconds(14, reader=0.9)
    assert acting.cause_of("reader") == "hog"
    assert acting.sent == []


def test_after_an_eviction_that_did_not_help_no_other_pod_is_evicted(acting: Node) -> None:
    acting.displace(100)
    acting.seconds(12, reader=0.9)
    assert [one.pod for one in acting.sent] == ["hog"]
    acting.stalls.acted(acting.now_ns, "hog")
    acting.sizes |= {"hog": (1, 0), "third": (100, 0)}
    acting.seconds(50, reader=0.9)
    assert len(acting.sent) == 1
    acting.sizes["reader"] = (10, 55)  # now it helped in part
    acting.seconds(12, reader=0.9)
    assert [one.pod for one in acting.sent[1:]] == ["third"]


@pytest.mark.parametrize(("refused_s", "then_s", "asked"), [(12, 1, ["hog"]), (122, 20, [])])
def test_the_request_is_sent_again_when_hot_can_take_it_unless_that_is_long_after_the_stall_began(
    acting: Node, refused_s: int, then_s: int, asked: list[str]
) -> None:
    acting.displace(100)
    acting.takes = False
    acting.seconds(refused_s, reader=0.9)
    assert acting.sent == []
    acting.takes = True
    acting.seconds(then_s, reader=0.9)
    assert [one.pod for one in acting.sent] == asked


def test_a_pod_that_is_gone_ends_its_stall(node: Node) -> None:
    node.seconds()
    node.seconds(14, reader=0.8)
    (begun,) = node.events()
    assert (begun.cause, begun.why) == (None, "unknown")
    node.node.pods = {"hog": node.node.pods["hog"]}
    node.seconds()
    (over,) = node.events()
    assert over.over == "gone"
    assert "reader" not in node.stalls.shares


def test_a_pod_that_outrace_holds_does_not_stall(node: Node) -> None:
    node.seconds()
    node.node.held = {"reader": None}  # type: ignore[dict-item]
    node.seconds(14, reader=0.9, hog=0.6)
    assert [found.pod for found in node.events()] == ["hog"]


def test_where_the_kernel_says_nothing_nothing_is_known(node: Node) -> None:
    node.seconds(3, reader=0.9)
    assert "reader" in node.stalls.shares
    for file in ("memory.pressure", "io.pressure"):
        (node.root / "reader" / file).unlink()
    node.waits["hog"][1] += 2000  # while nothing waits no file is read
    node.stalls.turn(node.now_ns + S)
    assert "reader" not in node.stalls.shares, "unknown is not 0"
    assert "hog" in node.stalls.shares


def test_while_nothing_on_the_machine_waits_no_pods_files_are_read(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.seconds(reader=0.01)
    node.seconds()
    read: list[Path] = []
    real = pressure.waited
    monkeypatch.setattr(pressure, "waited", lambda directory: read.append(directory) or real(directory))
    node.seconds(5)
    assert (read, node.stalls.shares["reader"]) == ([], 0.0)
    node.seconds(2, reader=0.9)
    assert node.stalls.shares["reader"] == pytest.approx(0.9)
    node.seconds(2)
    read.clear()
    node.seconds(4, hog=0.0004)  # less than a millisecond in each second adds up
    assert read.count(node.root / "hog") == 1


def test_the_machine_can_stall_as_a_whole(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", "machine>40%,grace=5s")
    node.seconds()
    node.sizes["hog"] = (91, 0)
    node.seconds(9, machine=0.6)
    (found,) = node.events()
    assert (found.domain, found.pod, found.pod_name, found.cause) == ("node", "machine", "machine", "hog")
    assert set(node.stalls.shares) == {"machine"}


def test_without_psi_no_thread_begins_and_the_log_says_so(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(pressure, "waited", lambda directory: None)
    monkeypatch.setattr(node.log, "info", lines.append)
    node.stalls.start()
    assert lines == ["stalls are not known: the kernel has no PSI (boot with psi=1)"]
