"""The live view of `outrace top` as lines: what stands where, and that it fits every screen, whatever the names are."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.cli.output import Line, clip, plain, shorten
from monitor.cli.top import _next
from monitor.cli.top_screen import bar_lines, growth_text, marks, once, screen
from monitor.errors import MonitorError
from tests.pods import top_frames as frames
from tests.pods.top_frames import ALLOCATABLE, GI, MEMORY, MI, daemon, domain, frame, pod

HOSTILE = "\x1b[2J\x1b]0;owned\x07\n\r\t\u202eevil\u4e2d\u0301\x9b31m[bold red]\ud800"


def text(shown: dict[str, Any], width: int = 80, height: int = 24) -> list[str]:
    return [one.text.rstrip() for one in screen(shown, width, height)]


def full() -> dict[str, Any]:
    """A node with something of everything."""
    pods = [
        pod("a", 300 * MI, 50 * MI, growth_bytes_per_s=12 * MI),
        pod("b", 200 * MI, None, qos=None, priority=None, growth_bytes_per_s=None),
        pod("critical", 100 * MI, GI, critical=True, qos="Guaranteed", priority=2_000_001_000),
        *(pod(f"web-{n:02}", (90 - n) * MI, 100 * MI) for n in range(20)),
    ]
    made = frame(pods, kernel_victim=frames.victim(), daemon=daemon(), source="daemon web (pid 321)")
    made["kubepods"] = domain(GI, 0, 0, 2 * GI)
    made["signals"][ALLOCATABLE] = {"available": GI, "capacity": 2 * GI}
    made["thresholds"] += [
        frames.threshold(MEMORY, 200 * MI, made["node"]["available"], "soft"),
        frames.threshold(ALLOCATABLE, 1536 * MI, GI),
    ]
    return made


def test_at_80_by_24_what_is_met_and_what_is_not_known_have_their_place() -> None:
    """All else: the screen of the documentation."""
    lines = text(full())
    assert len(lines) == 24
    assert "C allocatableMemory.available<1536Mi hard: met, 512.0Mi short" in lines
    (a,) = (one.split() for one in lines if " ns/a " in one)
    assert a == ["PK", "1", "ns/a", "250.0Mi", "300.0Mi", "0", "+12.0Mi/s"]
    (unknown,) = (one.split() for one in lines if "ns/b" in one)
    assert unknown[2:] == ["-", "200.0Mi", "?", "?"]


def test_what_stalls_has_a_column_while_a_pod_stalls() -> None:
    """Also where the screen is narrow: other columns are cut."""
    made = full()
    assert not any("STALL" in one for one in text(made))
    made["pods"][0]["stall_ratio"], made["pods"][1]["stall_ratio"] = 0.873, None
    for width in (120, 50):
        lines = text(made, width=width)
        assert [one.split(" ns/")[1].split()[1] for one in lines if " ns/" in one][:3] == ["87%", "?", "0%"]


names = st.text(max_size=40) | st.just(HOSTILE)


@settings(max_examples=60, deadline=None)
@given(names, names, st.integers(1, 130), st.integers(1, 45))
def test_a_hostile_name_is_text_and_takes_the_columns_it_seems_to(
    name: str, comm: str, width: int, height: int
) -> None:
    made = full()
    made["pods"][0] |= {"name": name, "namespace": comm, "cgroup": name, "qos": name}
    made["kernel_victim"] = frames.victim(comm, pod=name)
    made |= {"problems": [name, comm], "unlisted": name}
    made["daemon"] = daemon(name=name, mode=comm, rung=name, conditions=[name], not_ready=comm, lost={name: 1})
    lines = screen(made, width, height)
    assert len(lines) <= height
    for one in lines:
        assert len(one.text) <= width
        assert one.text.isascii()
        assert one.text.isprintable()
    for one in once(made, width):
        assert one.isascii()
        assert one.isprintable()


def test_on_a_few_lines_are_pods_not_only_what_is_above_them() -> None:
    lines = text(full(), height=10)
    assert (len(lines), sum(" ns/" in one for one in lines)) == (10, 4)


def test_a_frame_that_cannot_be_made_leaves_the_last_one_with_the_problem() -> None:
    class Gone:
        def frame(self) -> None:
            raise MonitorError("the cgroup is gone")

    shown = _next(Gone(), full())
    assert shown["pods"] == full()["pods"]
    lines = text(shown)
    assert lines[0].startswith("outrace top  no new figures")
    assert "the cgroup is gone" in lines
    with pytest.raises(MonitorError):
        _next(Gone(), None)


def test_what_a_name_would_do_is_shown() -> None:
    assert plain(HOSTILE).startswith(r"\x1b[2J\x1b]0;owned\x07\n\r\t\u202eevil\u4e2d\u0301\x9b31m[bold red]")
    assert plain("web-1") == "web-1"


@given(st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=60), st.integers(0, 70))
def test_a_name_that_is_shortened_keeps_its_ends(name: str, width: int) -> None:
    short = shorten(name, width)
    assert len(short) <= width
    assert short == name or (len(short) == width and (width < 3 or short[-1] == name[-1]))
    assert len(clip(Line(name), width).text) <= width


def test_the_bar_is_made_of_what_is_used_and_the_marks_are_where_it_ends() -> None:
    """By hand: 32 characters of 256 MiB."""
    made = frame()
    made["thresholds"] = [frames.threshold(MEMORY, 4 * GI, made["node"]["available"])]
    bar, below = bar_lines("node", made, marks(made), 9 + 2 + 32 + len(" 1.8Gi of 8.0Gi +3.0 MiB/s"))
    assert bar == f"node     [#####==-{'.' * 24}] 1.8Gi of 8.0Gi +3.0 MiB/s"
    assert below.rstrip() == " " * (10 + 16) + "A"


def test_thresholds_at_one_place_have_a_mark_each() -> None:
    made = frame()
    made["thresholds"] = [frames.threshold(MEMORY, n * MI, made["node"]["available"]) for n in (100, 101, 102, 103)]
    _, below = bar_lines("node", made, marks(made), 80)
    assert sorted(below.split()[-1]) == ["A", "B", "C", "D"]


@given(st.integers(0, 9 * GI), st.integers(0, GI), st.integers(0, GI), st.integers(20, 200))
def test_a_bar_is_as_wide_as_it_should_be(used: int, active: int, inactive: int, width: int) -> None:
    made = frame()
    made["node"] |= domain(used + active + inactive, active, inactive, 8 * GI)
    bar, below = bar_lines("node", made, marks(made), width)
    assert len(bar) == width or not below
    assert len(below) <= width


def test_what_is_not_known_is_not_zero() -> None:
    assert [growth_text(n) for n in (None, 0, -5 * MI, 2048)] == ["?", "=", "-5.0Mi/s", "+2.0Ki/s"]


def test_losses_and_what_is_wrong_are_shown() -> None:
    made = frame(
        [pod("a")], daemon=daemon(lost={"channel": 3, "ring_cross": 0}, not_ready="the pods are not known yet")
    )
    made["problems"] = [f"problem {n}" for n in range(5)]
    lines = text(made)
    assert any(one.startswith("lost records: channel 3;") for one in lines)
    assert "not ready: the pods are not known yet" in lines
    assert "and 3 lines more: outrace top --once | cat" in lines
    made["daemon"] = daemon(lost=None, bound_bytes=None, trigger=None)
    assert "losses unknown" in text(made)


def test_once_shows_every_pod() -> None:
    made = full() | {"problems": ["one"]}
    lines = list(once(made, 80))
    assert sum("ns/web" in one for one in lines) == 20
    assert all(len(one) <= 80 for one in lines)
    assert "one" not in lines, "it is printed to stderr"


def test_what_a_kubelet_would_do_by_its_own_formula() -> None:
    made = frame([pod("a")])
    ours = frames.threshold("memory.reclaimable", 100 * MI, 155 * MI)
    made["signals"]["memory.reclaimable"] = {"available": 155 * MI, "capacity": 8 * GI}
    made["thresholds"] = [frames.threshold(MEMORY, 100 * MI, 50 * MI, compared=True), ours]
    assert "A memory.available<100Mi hard (a kubelet's): met, 50.0Mi short" in list(once(made, 80))
    assert "B memory.reclaimable<100Mi hard: 55.0Mi left" in list(once(made, 80))
