"""What must come out of a scenario, and what did: the incidents of a run held against the truth."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monitor.lab.scenario import Scenario
    from monitor.lab.stage import Stage

#: The verdict of a situation that must not be an incident at all.
NOTHING = "none"

Incident = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Truth:
    """What has to come out. ``flags`` are all there may be; ``evicted`` and ``killed`` name pods ("" is a process in no
    pod) in order; ``domain`` is node, kubepods, or how the path of the cgroup ends.
    """

    verdict: str
    flags: frozenset[str] = frozenset()
    evicted: tuple[str, ...] = ()
    killed: tuple[str, ...] = ()
    observed: bool = False
    domain: str = "node"


@dataclass(slots=True)
class Guess:
    """Who the OOM killer was expected to take, looked at just before."""

    at: float  # Unix time
    pid: int | None


@dataclass(slots=True)
class Outcome:
    """One run: every incident it led to, and what is wrong with them ("" if nothing is)."""

    incidents: list[Incident]
    wrong: str
    guess: Guess | None = None
    metrics: dict[str, float] = field(default_factory=dict)  # after it

    @property
    def verdict(self) -> str:
        """The verdict; several are joined by a plus."""
        return "+".join(i["verdict"] for i in self.incidents) or NOTHING

    @property
    def right(self) -> bool:
        return not self.wrong


def judged(scenario: Scenario, stage: Stage, found: list[Incident]) -> Outcome:
    """Hold the incidents of a run against the truth."""
    guess = None
    killed_at = min((t for i in found if (t := _killed_at(i)) is not None), default=None)
    if killed_at is not None:
        guess = next((g for g in reversed(stage.guesses) if g.at < killed_at), None)
    return Outcome(found, _wrong(scenario.truth, stage, found), guess, metrics=stage.counted)


def _killed_at(incident: Incident) -> float | None:
    """Unix time at which the first victim was marked."""
    began = unix(incident["start"])
    mark = next((s for s in incident["steps"] if s["what"] == "oom"), None)
    return None if mark is None else began + float(mark["t_ms"]) / 1000


def _wrong(truth: Truth, stage: Stage, found: list[Incident]) -> str:
    if stage.failed:
        return f"{stage.failed} ({'; '.join(str(i['summary']) for i in found) or 'no incident'})"
    if truth.verdict == NOTHING or len(found) != 1:
        want = 0 if truth.verdict == NOTHING else 1
        summaries = "; ".join(str(i["summary"]) for i in found)
        return "" if len(found) == want else f"{len(found)} incidents instead of {want}: {summaries}"
    i = found[0]
    suffix = f"-{stage.run}"
    names = {f"{pod.namespace}/{pod.name}": name for name, pod in stage.pods.items()}
    killed = tuple(dict.fromkeys(names.get(v["pod"], v["pod"] or "").removesuffix(suffix) for v in i["oom_victims"]))
    evicted = tuple(names.get(e["pod"], e["pod"]) for e in i["evicted"])
    seen = (i["verdict"], sorted(i["flags"]), evicted, killed, i["observed"])
    wanted = (truth.verdict, sorted(truth.flags), truth.evicted, truth.killed, truth.observed)
    what = ("verdict", "flags", "evicted", "killed", "observed")
    wrong = [f"{k} {got!r} instead of {want!r}" for k, got, want in zip(what, seen, wanted, strict=True) if got != want]
    if not i["domain"].endswith(truth.domain):
        wrong.append(f"domain {i['domain']!r} instead of {truth.domain!r}")
    return f"{'; '.join(wrong)} ({i['summary']})" if wrong else ""


def unix(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
