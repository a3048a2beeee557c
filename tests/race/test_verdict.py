"""One episode per verdict and flag with the truth known, the laws of every verdict, and marks that were denied."""

import pytest

from monitor.race.events import Lost
from monitor.race.incident import FLAGS, VERDICTS
from tests.race.builders import START, judged, mark, ms, sample
from tests.race.scenarios import SCENARIOS, of_scenario


@pytest.mark.parametrize("name", SCENARIOS)
def test_verdict_and_flags(name: str) -> None:
    found = of_scenario(name)
    assert (found.verdict, set(found.flags)) == SCENARIOS[name][1:]


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_incident_has_the_contracts_keys_and_is_summed_up_in_one_sentence(name: str) -> None:
    found = of_scenario(name)
    assert list(found.to_json())[:14] == [
        "id", "start", "end", "domain", "verdict", "flags", "oom_victims", "invoker", "evicted",
        "margin_bytes", "margin_ms", "steps", "advice", "summary",
    ]  # fmt: skip
    assert found.summary.endswith(".")
    assert 20 < len(found.summary) < 330
    assert "None" not in found.summary + found.advice
    assert all(a["t_ms"] <= b["t_ms"] for a, b in zip(found.steps, found.steps[1:], strict=False))


def test_every_verdict_and_flag_has_a_scenario() -> None:
    assert {v for _, v, _ in SCENARIOS.values()} == set(VERDICTS)
    assert set().union(*(flags for _, _, flags in SCENARIOS.values())) == set(FLAGS)


def test_a_counted_kill_claims_nothing() -> None:
    """The daemon reports "global" where it knows of no cgroup, which is not the same as the machine having run out."""
    lost = [Lost(ms(0), ms(0) - 1, what, 1) for what in ("oom", "exit", "decision", "cross")]
    counted = mark(0, "cart", pid=0, victim_comm="", scope="global", oom_path=None, oom_usage=None, oom_limit=None)
    found = judged(*START, sample(-10, 500), *lost, counted)
    assert (found.verdict, found.flags) == ("undetermined", ("lost_events",))
    seen = mark(0, "cart", scope="global", oom_path=None, oom_usage=None, oom_limit=None)
    assert {"global", "wrong_victim"} <= set(judged(*START, sample(-10, 500), seen).flags)
