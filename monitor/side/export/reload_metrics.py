"""What came of `outrace reload` and SIGHUP, as metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from monitor.side.export.families import counter, gauge
from monitor.side.reload import Reloads


def reload_metrics(state: Reloads) -> Iterator[Metric]:
    """A label value for each result from the start, at 0."""
    results = {"taken": state.taken, "refused": state.refused}
    yield counter("config_reloads", "Times the configuration was read again while running.", results, "result")
    text = "0 while the configuration in force is not what the files say: the last reload was refused."
    yield gauge("config_last_reload_successful", text, not state.problem)
    text = "When the last reload was taken; 0: never."
    yield gauge("config_last_reload_success_timestamp_seconds", text, state.taken_at)
