"""Scenarios of the guided OOM killer: a race is lost, and whom it costs (`monitor.side.victim_marks`)."""

from __future__ import annotations

from pathlib import Path

from monitor.lab.node import MIB
from monitor.lab.scenario import scenario, soft
from monitor.lab.stage import STEADY, Stage
from monitor.race import incident as i

#: The OOM killer comes before anybody is evicted, however fast the monitor is.
_LOST = soft(64, "10m")


@scenario(_LOST, i.OOM_BEFORE_DECISION, killed=("small",), enforce=True, node_mib=256)
def guided(stage: Stage) -> None:
    """The kernel is guided to the policy's next victim, the smaller pod. Both are below their requests, so their
    priorities decide; a service in no pod takes what is left. Left alone, the kernel would take the larger one.
    """
    pods = {
        "database": stage.filled(stage.pod("database", qos="Burstable", request=160 * MIB, priority=1_000_000), 130),
        "small": stage.filled(stage.pod("small", qos="Burstable", request=100 * MIB, priority=-10), 60),
    }
    score = Path(f"/proc/{pods['small'].pid}/oom_score_adj")
    stage.until(lambda: int(score.read_text()) == 1000, "oom_score_adj 1000 of the policy's victim")
    service = stage.hog_outside_pods(90, rate=STEADY)
    service.go()
    stage.dies(pods["small"])
    service.expect("grown")
