"""The chart of memory on an incident's page: its moments, and curves that are damaged or of another version."""

import copy
from typing import Any

import pytest

from monitor.cli.incident_charts import domains, memory_chart
from monitor.cli.incident_page import page
from monitor.cli.incident_text import format_ms, tone
from monitor.race.report import report
from tests.cli.test_incident_page import RACES, WON, Skeleton


@pytest.mark.parametrize(
    "damage",
    [
        {"points": []},
        {"points": [[0.0, 5]]},
        {"points": [[float("nan"), 5], [1.0, 6]]},
        {"points": [[0.0, 5], [float("inf"), 6]]},
        {"points": [[0.0, 5], [1.0, 2**63]]},
        {"points": "abc"},
        {"in_s": float("nan")},
        {"grew": None},
        {"another": "version"},
    ],
    ids=str,
)
def test_curves_that_are_damaged_or_of_another_version_are_left_out(damage: dict[str, Any]) -> None:
    incident = copy.deepcopy(WON)
    incident["memory"]["curves"][-1] |= damage
    texts = Skeleton(page(incident)).texts
    assert [text for text in texts if text.startswith("Its samples are damaged, or")]
    assert WON["summary"] in texts
    assert [one.grew for one in report([incident]).pods] == [None]
    assert report([incident]).growth_unknown == 1


@pytest.mark.parametrize("memory", [[], "x", {}, {"lines": [], "curves": [{}]}], ids=str)
def test_so_does_what_is_no_memory_at_all(memory: object) -> None:
    assert "Its samples are damaged" in page(WON | {"memory": memory})


def test_a_curve_of_no_threshold_and_no_limit_is_not_drawn() -> None:
    incident = copy.deepcopy(WON)
    incident["memory"]["curves"][0]["measure"] = "allocatableMemory.available"
    assert domains(incident) == []
    assert "No samples of it are stored" in page(incident)


@pytest.mark.parametrize("name", ["observe", "lost"])
def test_the_moment_of_the_kill_is_in_the_chart_where_the_curve_ends_there(name: str) -> None:
    """Times of a curve are rounded: a kill at 188.664 ms stood beyond a curve that ended at 188.66."""
    incident = RACES[name]["incident"]
    texts = Skeleton(str(memory_chart(incident, "node"))).texts
    at = next(step["t_ms"] for step in incident["steps"] if step["what"] == "oom")
    assert f"OOM killer, {format_ms(at)}" in texts
    cut = copy.deepcopy(incident)
    node = cut["memory"]["curves"][0]
    node["points"] = [[t, used] for t, used in node["points"] if t < 0.0]
    texts = Skeleton(str(memory_chart(cut, "node"))).texts
    assert {"crossed", f"OOM killer, {format_ms(at)}"} <= set(texts), "also beyond the last sample"


def test_a_step_of_an_earlier_kill_hides_none_of_this_race() -> None:
    incident = copy.deepcopy(RACES["lost"]["incident"])
    [kill, *_] = [step for step in incident["steps"] if step["what"] == "oom"]
    incident["steps"].insert(0, {**kill, "t_ms": -60_000.0})
    assert f"OOM killer, {format_ms(kill['t_ms'])}" in Skeleton(str(memory_chart(incident, "node"))).texts


def test_a_kill_while_outrace_only_observed_is_no_good_end() -> None:
    observed = RACES["observe"]["incident"]
    assert (observed["verdict"], observed["observed"]) == ("eviction_won", True)
    assert [tone(one) for one in (observed, observed | {"oom_victims": []}, WON)] == ["bad", "good", "good"]
    assert '<h1 class="bad">' in page(observed)
