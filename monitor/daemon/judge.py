"""From an episode to an incident: the verdict, what a kubelet would have done, the store, the alerts, the log.

In a thread of its own: judging takes milliseconds, the store may wait for a disk, and the main loop for neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitor.daemon.config import RunConfig
from monitor.errors import MonitorError
from monitor.policy.synchronize import EvictionConfig
from monitor.race.episode import Episode
from monitor.race.incident import LOST_RACES, OWN_LIMIT, Incident
from monitor.race.verdict import verdict
from monitor.report.incidents import IncidentStore
from monitor.report.log import Log
from monitor.report.tally import Tally
from monitor.report.worker import Worker

if TYPE_CHECKING:
    from monitor.race.counterfactual import Counterfactual

#: Episodes waiting to be judged; each is at most some hundred kilobytes.
_QUEUE = 64
#: Pause between two tries to store an incident.
_RETRY_S = 5.0
#: Verdicts that count as soon as they are given. (One that is another at the end counts under both.)
AT_ONCE = LOST_RACES | {OWN_LIMIT}


def judge(found: Episode, config: EvictionConfig, cgroup_version: int, realtime_ns: int) -> Incident:
    """The incident of an episode. Pure: the same episode gives the same incident, live and in a replay.

    ``realtime_ns``: Unix time less CLOCK_MONOTONIC.
    """
    return replace(
        verdict(found, realtime_ns=realtime_ns), counterfactual=kubelets_answer(found, config, cgroup_version)
    )


def kubelets_answer(found: Episode, config: EvictionConfig, cgroup_version: int) -> tuple[Counterfactual, ...]:
    """What a kubelet with these thresholds would have done: by its loop and, where there is one, by notification."""
    # Imported by the first incident that needs them.
    from monitor.race.counterfactual import MEMCG, POLL, counterfactual
    from monitor.race.facts import facts
    from monitor.race.world import world

    seen = world(facts(found))
    if seen is None:
        return ()
    modes = (POLL, MEMCG) if cgroup_version == 1 else (POLL,)
    return tuple([counterfactual(seen, config, mode) for mode in modes])


class Judge:
    """Judges episodes one after the other. ``on_incident`` hears of each, from the thread that judged it."""

    def __init__(
        self,
        config: RunConfig,
        cgroup_version: int,
        log: Log,
        tally: Tally,
        on_incident: Callable[[dict[str, Any]], None],
    ) -> None:
        self._config = config.eviction_config()
        self._version = cgroup_version
        self._log = log
        self._tally = tally
        self._on_incident = on_incident
        self.store = IncidentStore(Path(config.state_dir) / "incidents.db", log=log)
        self._worker = Worker("judge", _QUEUE)
        self._files = Worker("incidents", _QUEUE, retry_s=_RETRY_S, on_error=self._store_failed)
        self._told: dict[str, str] = {}  # id -> the verdict it was logged with
        self._counted: dict[str, str] = {}  # id -> the verdict it was counted with
        self.offset_ns = time.time_ns() - time.monotonic_ns()  # what times are shown with, live and in a replay

    def submit(self, found: Episode, final: bool) -> None:
        """Judge an episode; one that is still going on is judged again when it is over."""
        if not self._worker.submit(lambda: self._judge(found, final)):
            self._log.error("too many episodes at once: one is not judged", domain=found.domain)

    def close(self, timeout_s: float) -> None:
        """Finish what is queued, for a moment."""
        self._worker.close(timeout_s)
        self._files.close(timeout_s)

    @property
    def dropped(self) -> int:
        """Episodes and incidents that found no room in a queue."""
        return self._worker.dropped + self._files.dropped

    def _judge(self, found: Episode, final: bool) -> None:
        try:
            incident = (
                judge(found, self._config, self._version, self.offset_ns)
                if final
                else verdict(found, realtime_ns=self.offset_ns)
            )
        except Exception as error:  # noqa: BLE001 - a defect in judging must not cost the next incident its verdict
            self._log.error(
                "an episode could not be judged", domain=found.domain, problem=f"{type(error).__name__}: {error}"
            )
            return
        made = incident.to_json()
        # A kill counts at once: a rule that waits for the end of the episode would be seconds late.
        if (final or incident.verdict in AT_ONCE) and self._counted.get(incident.id) != incident.verdict:
            self._tally.count(incident)
            self._counted[incident.id] = incident.verdict
        self._say(made, final)
        if final:
            self._told.pop(incident.id, None)
            self._counted.pop(incident.id, None)
        self._files.submit(lambda: self.store.record(made))
        try:
            self._on_incident(made)
        except MonitorError as error:
            self._log.error(str(error))

    def _say(self, incident: Mapping[str, Any], final: bool) -> None:
        """One line when somebody was killed, again if the verdict changes, and one when it is over."""
        if not final and self._told.get(incident["id"]) == incident["verdict"]:
            return
        if not final:
            self._told[incident["id"]] = incident["verdict"]
        level = "info" if incident["verdict"] in ("relieved", "own_limit") else "warning"
        keys = ("id", "verdict", "flags", "domain", "margin_bytes", "margin_ms", "observed", "advice")
        self._log(level, "incident", final=final, **{key: incident[key] for key in keys}, summary=incident["summary"])

    def _store_failed(self, error: OSError) -> None:
        self._log.error(
            "incidents cannot be stored; trying again",
            path=str(self.store.path),
            errno=error.errno,
            problem=error.strerror,
            every_s=_RETRY_S,
        )
