"""`outrace incidents show ID --html`: one page that needs nothing else, in which names of processes stay names."""

import copy
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.cli import svg
from monitor.cli.incident_page import charts, memory_chart, page
from monitor.cli.incident_text import tone
from monitor.cli.output import format_ms
from monitor.cli.svg import Markup, element
from monitor.side.incidents import IncidentStore
from tests.commands import called, run
from tests.live import one_line, outrace
from tests.race.scenarios import SCENARIOS, of_scenario
from tests.side.incident_samples import SAMPLES

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = runpy.run_path(str(ROOT / "scripts/screenshots.py"))
#: Real races: of recordings that are kept, and of the picture of README.md.
RECORDED = [
    incident
    for path in sorted((ROOT / "tests/data/replay").glob("*.json"))
    for incident in json.loads(path.read_text())["incidents"]
]
RACES = json.loads((ROOT / "docs/pictures/race.json").read_text())
INCIDENTS = [*RECORDED, *SAMPLES, *(RACES[name]["incident"] for name in ("observe", "enforce", "lost"))]
#: Every verdict and flag: holds, refusals, own formulas, kills at an own limit.
MADE = [pytest.param(of_scenario(name).to_json(), id=str(name)) for name in SCENARIOS]
WON = RECORDED[0]
#: Texts that decide what is shown, not names.
MEANING = {"what", "verdict", "start", "end", "signal", "measure", "mode", "kind", "from", "flags", "by"}
HOSTILE = (
    "<script>document.title='owned'</script>",
    "</title></svg></style><script src=//x.example/></script>",
    '" onload="alert(1)" x="',
    "' onmouseover=alert(1) '",
    "<img src=x onerror=document.title=1>",
    "&lt;b&gt;&#60;",
    "{0.__class__} %s \\x1b",
    "]]><!--",
    "\x1b[2J\x00\u202e\ud800",
)


class Skeleton(HTMLParser):
    """The elements and attributes of a page without its texts. Raises AssertionError for what is not well-formed."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.shape: list[tuple[str, ...]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.shape.append((tag, *(name for name, _ in attrs)))
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def changed(value: Any, change: Callable[[str], str], key: str = "") -> Any:
    """An incident with every name in it changed."""
    if isinstance(value, dict):
        return {name: changed(inner, change, name) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [changed(inner, change, key) for inner in value]
    return change(value) if isinstance(value, str) and key not in MEANING else value


@pytest.mark.parametrize("incident", [*(pytest.param(one, id=one["id"]) for one in INCIDENTS), *MADE])
def test_a_page_is_well_formed_and_asks_for_nothing(incident: dict[str, Any]) -> None:
    html = page(incident)
    found = Skeleton(html)
    attributes = {name for _, *names in found.shape for name in names}
    assert not attributes & {"src", "href", "style", "srcset", "action"}
    assert not [name for name in attributes if name.startswith("on")]
    assert {tag for tag, *_ in found.shape} & {"script", "link", "img", "iframe", "object", "image", "use"} == set()
    assert re.findall(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", html) == []
    assert "default-src &#x27;none&#x27;; style-src &#x27;unsafe-inline&#x27;" in html
    texts = " ".join(found.texts)
    assert incident["summary"] in texts
    assert (incident["advice"] or "") in texts
    drawn = sum(text.startswith("Memory left in") for text in found.texts)
    assert drawn == len(charts(incident))
    assert drawn or "No samples of it are stored with this incident." in found.texts


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda one: one["id"])
def test_hostile_names_add_no_element_and_no_attribute(incident: dict[str, Any], hostile: str) -> None:
    harmless = Skeleton(page(changed(incident, lambda text: f"{text}x")))
    attacked = Skeleton(page(changed(incident, lambda text: f"{text}{hostile}")))
    assert attacked.shape == harmless.shape


@pytest.mark.parametrize("hostile", HOSTILE)
def test_kinds_and_verdicts_of_another_version_are_escaped_too(hostile: str) -> None:
    incident = copy.deepcopy(WON)
    incident |= {"verdict": hostile, "flags": [hostile], "by": hostile}
    incident["steps"].append({"t_ms": 9.0, "what": hostile, hostile: hostile, "from": hostile})
    incident["memory"]["lines"][0]["signal"] = hostile
    incident["memory"]["curves"][0]["measure"] = incident["memory"]["lines"][0]["signal"]
    harmless = json.loads(json.dumps(incident).replace(json.dumps(hostile)[1:-1], "x"))
    assert Skeleton(page(incident)).shape == Skeleton(page(harmless)).shape


def test_what_is_no_markup_is_escaped_and_what_is_stays() -> None:
    inner = element("b", "<i>", 1.25, class_='"')
    assert inner == '<b class="&quot;">&lt;i&gt;1.2</b>'
    assert element("p", inner, "&") == f"<p>{inner}&amp;</p>"
    assert element("p", HOSTILE[-1]) == "<p>\\x1b[2J\\x00\\u202e\\ud800</p>", "no text that a browser shows backwards"
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert not isinstance(inner + "x", Markup), "an addition is text again"


def test_the_curve_meets_the_threshold_where_it_was_crossed() -> None:
    found = page(WON)
    chart = found[found.index("Memory left in node") :]
    [crossed] = [step for step in WON["steps"] if step["what"] == "crossed" and step["kind"] == "hard"]
    points = [tuple(map(float, pair.split(","))) for pair in re.search(r'points="([^"]+)"', chart)[1].split()]
    dashed = re.findall(r'<line x1="78" y1="([\d.]+)" x2="886" y2="\1" stroke="#656d76" stroke-dasharray', chart)
    soft, hard = sorted(map(float, dashed))
    assert soft < hard
    drops_to = max(y for _, y in points)
    assert drops_to == pytest.approx(hard, abs=1), "it was evicted as soon as the hard threshold was crossed"
    assert crossed["available"] < crossed["quantity"]


def damaged(points: object) -> dict[str, Any]:
    memory = copy.deepcopy(WON["memory"])
    memory["curves"][-1]["points"] = points
    return memory


NUMBERS = [(float("nan"), 5), (float("inf"), 6), (1.0, 2**63)]
POINTS = [[], [[0.0, 5]], "abc", *([[0.0, 5], [seconds, size]] for seconds, size in NUMBERS)]


@pytest.mark.parametrize("memory", [*map(damaged, POINTS), [], "x", {}, {"lines": [], "curves": [{}]}])
def test_samples_that_are_damaged_are_left_out(memory: object) -> None:
    texts = Skeleton(page(WON | {"memory": memory})).texts
    assert [text for text in texts if text.startswith("Its samples are damaged, or")]
    assert WON["summary"] in texts


def test_a_curve_of_no_threshold_and_no_limit_is_not_drawn() -> None:
    incident = copy.deepcopy(WON)
    incident["memory"]["curves"][0]["measure"] = "allocatableMemory.available"
    assert charts(incident) == {}
    assert "No samples of it are stored" in page(incident)


def chart(incident: dict[str, Any]) -> str:
    return str(memory_chart(incident, "node", charts(incident)["node"]))


@pytest.mark.parametrize("name", ["observe", "lost"])
def test_the_moment_of_the_kill_is_in_the_chart_where_the_curve_ends_there(name: str) -> None:
    """Times of a curve are rounded: a kill at 188.664 ms stood beyond a curve that ended at 188.66."""
    incident = RACES[name]["incident"]
    texts = Skeleton(chart(incident)).texts
    at = next(step["t_ms"] for step in incident["steps"] if step["what"] == "oom")
    assert f"OOM killer, {format_ms(at)}" in texts
    cut = copy.deepcopy(incident)
    node = cut["memory"]["curves"][0]
    node["points"] = [[t, used] for t, used in node["points"] if t < 0.0]
    texts = Skeleton(chart(cut)).texts
    assert {"crossed", f"OOM killer, {format_ms(at)}"} <= set(texts), "also beyond the last sample"


def test_a_step_of_an_earlier_kill_hides_none_of_this_race() -> None:
    incident = copy.deepcopy(RACES["lost"]["incident"])
    [kill, *_] = [step for step in incident["steps"] if step["what"] == "oom"]
    incident["steps"].insert(0, {**kill, "t_ms": -60_000.0})
    assert f"OOM killer, {format_ms(kill['t_ms'])}" in Skeleton(chart(incident)).texts


def test_a_kill_while_outrace_only_observed_is_no_good_end() -> None:
    observed = RACES["observe"]["incident"]
    assert (observed["verdict"], observed["observed"]) == ("eviction_won", True)
    assert [tone(one) for one in (observed, observed | {"oom_victims": []}, WON)] == ["bad", "good", "good"]
    assert '<h1 class="bad">' in page(observed)


def test_the_command_prints_the_page_of_the_incident(tmp_path: Path) -> None:
    IncidentStore(tmp_path / "incidents").add(WON)
    arguments = ("incidents", "show", WON["id"], "--html", "--state-dir", str(tmp_path))
    done = outrace(*arguments)
    assert (done.returncode, done.stdout) == (0, page(WON))
    one_line(called(*arguments, "-o", "json"), 2, "--html and -o json exclude each other")


@given(st.floats(-1e12, 1e12), st.floats(1e-6, 1e12), st.integers(2, 12))
def test_ticks_are_round_numbers_and_never_too_many(low: float, width: float, most: int) -> None:
    assert len(svg.ticks(low, low + width, most)) <= most + 1
    assert [svg.ticks(*ends, 4) for ends in ((0, 10), (-3, 3), (0, 0.5))] == [[0, 5, 10], [-2, 0, 2], [0, 0.2, 0.4]]


@pytest.mark.skipif(SCREENSHOTS["browser"]() is None, reason=SCREENSHOTS["MISSING"])
def test_a_browser_runs_nothing_of_a_hostile_record_and_asks_for_nothing(tmp_path: Path) -> None:
    """Also where markup would get through: the same scripts, unescaped, are stopped by the page's policy."""
    script = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    attacked = page(changed(WON, lambda text: text + "".join(HOSTILE[:5])))
    for name, html in (("escaped", attacked), ("raw", page(WON).replace("<body>", f"<body>{script}"))):
        path = tmp_path / f"{name}.html"
        path.write_text(html)
        shown = dom(path)
        assert "<svg" in shown
        assert "<title>owned" not in shown
    path = tmp_path / "no-policy.html"
    path.write_text(re.sub(r"<meta http-equiv[^>]+>", "", page(WON)).replace("<body>", f"<body>{script}"))
    assert "<title>owned" in dom(path), "the browser does run scripts where nothing stops them"


def test_without_a_browser_no_picture_changes_and_the_reason_is_said() -> None:
    before = {path: path.read_bytes() for path in SCREENSHOTS["PICTURES"]}
    done = run(sys.executable, ROOT / "scripts/screenshots.py", env={"PATH": "", "PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout) == (0, f"no screenshots taken: {SCREENSHOTS['MISSING']}\n")
    assert {path: path.read_bytes() for path in before} == before


def dom(path: Path) -> str:
    done: subprocess.CompletedProcess[bytes] = SCREENSHOTS["chromium"](SCREENSHOTS["browser"](), path, "--dump-dom")
    return done.stdout.decode()
