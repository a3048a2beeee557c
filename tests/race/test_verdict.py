"""One episode per verdict and flag, with the truth known; and the laws every verdict keeps."""

import pytest

from monitor.race.incident import FLAGS, VERDICTS
from tests.race.builders import MI, one, same_after_json
from tests.race.scenarios import SCENARIOS, of_scenario


@pytest.mark.parametrize("name", SCENARIOS)
def test_verdict_and_flags(name: str) -> None:
    found = of_scenario(name)
    assert (found.verdict, set(found.flags)) == SCENARIOS[name][1:]


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_incident_can_be_stored_and_read(name: str) -> None:
    found = of_scenario(name)
    assert same_after_json(found)
    assert same_after_json(one(*SCENARIOS[name][0]))  # type: ignore[arg-type]
    assert list(found.to_json())[:14] == [
        "id", "start", "end", "domain", "verdict", "flags", "oom_victims", "invoker", "evicted",
        "margin_bytes", "margin_ms", "steps", "advice", "summary",
    ]  # fmt: skip
    assert "steps" not in found.to_json(steps=False)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_incident_is_summed_up_in_one_sentence(name: str) -> None:
    found = of_scenario(name)
    assert found.summary.endswith(".")
    assert 20 < len(found.summary) < 330
    assert "None" not in found.summary + found.advice
    assert all(a["t_ms"] <= b["t_ms"] for a, b in zip(found.steps, found.steps[1:], strict=False))


def test_every_verdict_and_flag_has_a_scenario() -> None:
    assert {v for _, v, _ in SCENARIOS.values()} == set(VERDICTS)
    assert set().union(*(flags for _, _, flags in SCENARIOS.values())) == set(FLAGS)


def test_an_incident_has_the_keys_of_the_contract() -> None:
    found = of_scenario("during the grace of its victim").to_json()
    assert found["oom_victims"] == [
        {
            "pid": 4242,
            "comm": "python3",
            "pod": "shop/hog",
            "memcg": "/kubepods/hog/main",
            "rss_bytes": 500 * MI,
            "oom_score_adj": 1000,
            "policy_rank": 1,
        }
    ]
    assert found["invoker"] == {"pid": 77, "comm": "nginx", "pod": "shop/cart"}
    evicted = {"pod": "shop/hog", "grace_s": 30, "rank": 1, "figures": None}
    assert (found["evicted"], found["domain"], found["reported_evicted"]) == ([evicted], "node", [])


@pytest.mark.parametrize(
    ("name", "observed", "by"),
    [
        ("eviction won", False, "outrace"),
        ("observed, in time", True, "outrace"),
        ("observed, too late", True, "outrace"),
        ("observed, and nobody died", True, "outrace"),
        ("an eviction by a kubelet", False, "kubelet"),
        ("during the kubelet's grace", False, "kubelet"),
        ("relieved", False, None),
    ],
)
def test_whose_eviction_it_is_about(name: str, observed: bool, by: str | None) -> None:
    found = of_scenario(name)
    assert (found.observed, found.by) == (observed, by)
