"""The drawings of the documents that need no race: both processes, and the screen of `outrace top`.

    .venv/bin/python -m scripts.drawings           draws docs/pictures/processes.svg and docs/pictures/top.svg

As `scripts/picture.py` they need no font, style or script from elsewhere, and have a ground of their own: they look the
same on a light and on a dark page.
"""

from __future__ import annotations

import re
from pathlib import Path

from monitor.cli import svg
from monitor.cli.output import Line
from monitor.cli.svg import Markup, element
from monitor.cli.top_screen import screen
from tests.pods.top_example import example

PICTURES = Path(__file__).resolve().parents[1] / "docs/pictures"

# -- both processes ----------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, BOX, GAP, ROW = 900, 442, 370, 136, 21
HOT = (
    ("loop.py", "a turn: descriptors, then timers"),
    ("main.py", "wires all; what is due when"),
    ("records.py", "records of the kernel"),
    ("decide.py", "a pass, the decision"),
    ("trigger.py", "the next victim, ready"),
    ("suspension.py", "evictions that would not help"),
    ("pending_release.py", "memory that is still coming"),
    ("evictor.py", "until the pod is gone"),
)
SIDE = (
    ("main.py", "the loop"),
    ("pod_sync.py", "kubelet, API, manifests"),
    ("message_handler.py", "logs, status, reaping"),
    ("event_builder.py", "messages -> events"),
    ("judge.py", "episode -> incident"),
    ("disk_watch.py", "disks, process ids"),
    ("alerts/ cluster/", "receivers, the API server"),
    ("export/ incidents/", "metrics, the store"),
)


def box(x: float, y: float, width: float, height: float, title: str, colour: str) -> list[Markup]:
    frame = element("rect", x=x, y=y, width=width, height=height, rx=6, fill="none", stroke=colour, stroke_width=2)
    return [frame, svg.text(x + 12, y + 22, title, colour, 15)]


def files(x: float, y: float, found: tuple[tuple[str, str], ...]) -> list[Markup]:
    """A line each: the file, and what it does."""
    out = []
    for number, (name, words) in enumerate(found):
        at = y + ROW * number
        out += [svg.text(x, at, name, size=13), svg.text(x + 138, at, words, svg.GREY, 13)]
    return out


def arrow(x1: float, y1: float, x2: float, y2: float) -> list[Markup]:
    """A straight one, along an axis, with its head at the second end."""
    dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
    wings = [(x2 - 9 * dx + 5 * side * dy, y2 - 9 * dy + 5 * side * dx) for side in (-1, 1)]
    head = element("polygon", points=" ".join(f"{x:g},{y:g}" for x, y in ((x2, y2), *wings)), fill=svg.GREY)
    return [svg.line(x1, y1, x2 - 9 * dx, y2 - 9 * dy, svg.GREY), head]


def processes() -> str:
    """hot above the kernel, the helper beside it."""
    top, height, right = 62, 210, 12 + BOX + GAP
    low, kernel, middle = top + height, HEIGHT - 82, 12 + BOX + GAP / 2
    out = [svg.text(12, 20, "outrace run", size=15)]
    loader = "monitor.kernel.loader compiles and pins the programs where that is due, and ends"
    out += [svg.text(108, 20, loader, svg.GREY), *arrow(60, 28, 60, top), svg.text(70, 50, "exec", svg.GREY, 12)]
    out += [*box(12, top, BOX, height, "hot: decides and kills, never waits", svg.RED), *files(24, top + 48, HOT)]
    out += [
        *box(right, top, BOX, height, "helper: does all that may wait", svg.BLUE),
        *files(right + 12, top + 48, SIDE),
    ]
    out += [*arrow(12 + BOX, top + 76, right, top + 76), *arrow(right, top + 136, 12 + BOX, top + 136)]
    for y, words in ((68, "decisions, events"), (128, "pods, disk figures"), (158, "monitor/link")):
        out.append(svg.text(middle, top + y, words, svg.GREY, 12, "middle"))
    out += [*box(12, kernel, WIDTH - 24, 70, "kernel", svg.INK)]
    compare = (
        "bpf/*.c compare working sets with ceilings at every charge; without BPF monitor/sources polls cgroup files"
    )
    out.append(svg.text(24, kernel + 48, compare, svg.GREY))
    for x, up, words in (
        (60, True, "rings, mapped tables"),
        (230, False, "SIGKILL, ceilings"),
        (right + 48, True, "/proc, cgroup files, /dev/kmsg; pods, API"),
    ):
        out += arrow(x, kernel, x, low) if up else arrow(x, low, x, kernel)
        out.append(svg.text(x + 10, low + 48, words, svg.GREY, 12))
    return svg.picture(WIDTH, HEIGHT, "The two processes of outrace, and the kernel", *out) + "\n"


# -- the screen of top -------------------------------------------------------------------------------------------------

COLUMNS, LINES, CELL, PITCH, EDGE = 80, 19, 8.4, 18, 14
#: By the styles of `monitor.cli.top`, on a dark ground; "" is plain text.
COLOURS = {
    "": "#e6edf3",
    "title": "#ffffff",
    "dim": "#9198a1",
    "warn": "#e3b341",
    "bad": "#ff7b72",
}


def row(y: float, line: Line) -> list[Markup]:
    """Each word where its column is, as wide as its letters: whatever font the reader has."""
    bold = "bold" if line.style in ("title", "bad") else None
    out = []
    for found in re.finditer(r"\S+( \S+)*", line.text):
        at = {"x": EDGE + CELL * found.start(), "y": y, "textLength": CELL * len(found[0])}
        out.append(element("text", found[0], fill=COLOURS[line.style], **at, lengthAdjust="spacingAndGlyphs",
                           font_weight=bold))  # fmt: skip
    return out


def top() -> str:
    """The frame of docs/top.md, in the colours of a terminal."""
    width, height = 2 * EDGE + COLUMNS * CELL, 2 * EDGE + LINES * PITCH
    ground = element("rect", width=width, height=height, fill="#0d1117")
    lines = [
        row(EDGE + PITCH * (number + 0.75), spans) for number, spans in enumerate(screen(example(), COLUMNS, LINES))
    ]
    words = element("g", *(one for found in lines for one in found), font_family="monospace", font_size=14)
    return svg.picture(width, height, "The screen of outrace top", ground, words) + "\n"


DRAWN = {PICTURES / "processes.svg": processes, PICTURES / "top.svg": top}

if __name__ == "__main__":
    for path, draw in DRAWN.items():
        path.write_text(draw())
