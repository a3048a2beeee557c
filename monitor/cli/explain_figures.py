"""Whom a kubelet would take now, by the age of its figures of pods: the daemon has what they had before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monitor.policy.ranking import Candidate
from monitor.policy.releases import Era
from monitor.race.codec import RecordError
from monitor.race.events import WorkingSets
from monitor.race.figure_age import FigureAge, PodHistory, figure_age
from monitor.race.series import TimeSeries


def kubelets_choice(data: Mapping[str, Any] | None, order: Sequence[Candidate], rules: Era) -> FigureAge | None:
    """By what the daemon reported (``data``) and the order of this moment; None where either holds too little."""
    if data is None:
        return None
    try:
        sets = WorkingSets.from_json(data)
    except RecordError:
        return None  # a daemon of another version
    at = sets.ts_ns
    now = {pod.uid: pod.usage for pod in order}
    series, born = {}, {}
    for one in sets.pods:
        usage = now.get(one.pod)
        if usage is not None and one.points:
            series[one.pod] = TimeSeries([*one.points, (at, usage)])  # the last look is up to a second old
            if one.new:
                born[one.pod] = one.points[0][0]
    return figure_age(order, PodHistory(series, born, sets.since_ns), at, at, rules.memory_key)
