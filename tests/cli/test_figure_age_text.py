"""What `outrace incidents show` prints about a kubelet's old figures of pods."""

import dataclasses
from typing import Any

import pytest
from click import unstyle

from monitor.cli.explain_figures import kubelets_choice
from monitor.cli.incident_text import figures_text, show_lines
from monitor.policy.releases import era
from monitor.race.events import WorkingSets
from monitor.race.figure_age import FigureAge, OfAge, PodPoints
from tests.race.builders import MI, ms, pod
from tests.side.incident_samples import EVICTION_WON, OWN_LIMIT

BATCH_THEN_DB = FigureAge(
    4500, "shop/batch", 15, (OfAge("shop/batch", 0, 6, 0.4), OfAge("shop/db", 6, 15, 0.6)), ("shop/batch", "shop/db")
)


def text(**more: Any) -> str:
    return figures_text(dataclasses.replace(BATCH_THEN_DB, **more).to_json())


def shown(incident: dict[str, Any]) -> str:
    return unstyle(" ".join(" ".join(show_lines(incident, 1000)).split()))


def test_the_wrong_pod_on_old_figures() -> None:
    assert text() == (
        "It would have taken shop/batch on figures of pods up to 6 s old (40% of the ages up to 15 s), shop/db on "
        "those 6 to 15 s old (60% of the ages up to 15 s, the wrong pod)."
    )


def test_figures_that_change_nothing() -> None:
    same = (OfAge("shop/batch", 0, 15, 1.0),)
    assert text(by_age=same, could=("shop/batch",)) == (
        "Figures of pods up to 15 s old change nothing: shop/batch is taken."
    )
    assert text(by_age=same).endswith("Each pod's figure has an age of its own: shop/db could be taken too.")


def test_what_is_not_known_is_not_shown_as_the_same() -> None:
    short = (OfAge("shop/batch", 0, 2.5, 1.0),)
    assert text(known_s=2.5, by_age=short, could=("shop/batch",)) == (
        "Figures of pods up to 2.5 s old change nothing: shop/batch is taken. What they had before is not known."
    )
    assert text(known_s=0.0, by_age=(), could=("shop/batch",)) == (
        "It would have taken shop/batch on fresh figures of pods; what they had before is not known."
    )


def test_explain_ranks_the_pods_of_this_moment_by_what_they_had() -> None:
    pods = (pod("hog", 500 * MI), pod("cart", 200 * MI), pod("still", 90 * MI))
    hog = PodPoints("uid-hog", False, ((ms(-20_000), 10 * MI), (ms(-4000), 300 * MI)))
    gone = PodPoints("uid-gone", False, ((ms(-20_000), 900 * MI), (ms(-1000), 800 * MI)))
    sets = WorkingSets(ms(500), ms(-20_000), (hog, gone)).to_json()
    found = kubelets_choice(sets, pods, era("kubelet-1.36"))
    assert found is not None
    assert (found.fresh, [(span.pod, span.to_s) for span in found.by_age]) == (
        "shop/hog",
        [("shop/hog", 4.5), ("shop/cart", 15.0)],
    )
    assert figures_text(found.to_json(), "A kubelet would take").startswith("A kubelet would take shop/hog on figures")


@pytest.mark.parametrize("data", [None, {}, {"event": "workingsets", "ts_ns": 1, "of": "another version"}])
def test_explain_shows_nothing_where_the_daemon_does_not(data: dict[str, Any] | None) -> None:
    assert kubelets_choice(data, (pod("hog", MI),), era("kubelet-1.36")) is None


def test_show_has_it_below_the_kubelets_chances() -> None:
    assert "shop/search on those 6 to 15 s old (60% of the ages up to 15 s, the wrong pod)" in shown(EVICTION_WON)


def test_an_eviction_by_the_kubelet_is_explained() -> None:
    took = {"pod": "shop/db", "grace_s": 0, "rank": 3, "figures": BATCH_THEN_DB.to_json()}
    found = shown({**OWN_LIMIT, "by": "kubelet", "evicted": [took]})
    assert "The kubelet took shop/db. On figures 6 to 15 s old it was first, on fresh ones shop/batch." in found


def test_oom_killed_and_evicted_as_the_api_has_it() -> None:
    (victim,) = {who["pod"] for who in OWN_LIMIT["oom_victims"]}
    found = shown({**OWN_LIMIT, "reported_evicted": [victim]})
    assert f"{victim} is Evicted by the kubelet as the API has it, and was OOM-killed" in found
