"""Scenarios of the guided OOM killer: a race is lost, and whom it costs (`monitor.side.victim_marks`)."""

from __future__ import annotations

from pathlib import Path

from monitor.lab.node import MIB
from monitor.lab.scenario import scenario, soft
from monitor.lab.stage import STEADY, Stage
from monitor.race import incident as i

#: The OOM killer comes before anybody is evicted, however fast the monitor is.
_LOST = soft(64, "10m")
_UNGUIDED = ("--no-guide-oom-killer",)


@scenario(_LOST, i.OOM_BEFORE_DECISION, killed=("small",), enforce=True, node_mib=256)
def guided(stage: Stage) -> None:
    """The kernel is guided to the policy's next victim, the smaller pod."""
    _lose(stage, "small", 1000)


@scenario((*_LOST, *_UNGUIDED), i.OOM_BEFORE_DECISION, i.WRONG_VICTIM, killed=("database",), enforce=True, node_mib=256)
def unguided(stage: Stage) -> None:
    """Left alone, the kernel takes the largest pod, of the highest priority."""
    _lose(stage, "database", 610)


def _lose(stage: Stage, dies: str, adj: int) -> None:
    """Both pods are below their requests, so their priorities decide; a service in no pod takes what is left."""
    pods = {
        "database": stage.filled(stage.pod("database", qos="Burstable", request=160 * MIB, priority=1_000_000), 130),
        "small": stage.filled(stage.pod("small", qos="Burstable", request=100 * MIB, priority=-10), 60),
    }
    score = Path(f"/proc/{pods['small'].pid}/oom_score_adj")
    stage.until(lambda: int(score.read_text()) == adj, f"oom_score_adj {adj} of the policy's victim")
    service = stage.hog_outside_pods(90, rate=STEADY)
    service.go()
    stage.dies(pods[dies])
    service.expect("grown")
