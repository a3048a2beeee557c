"""The HTTP side of the side process: /metrics, /healthz, /readyz, /stats/summary.

A module of its own because the side imports it only after it has told the hot process the pods: 17 ms of a warm start.
"""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

from monitor.actions.oomadj import OomScores
from monitor.side.export import http, stats_summary
from monitor.side.view import View
from monitor.side.worker import Worker

if TYPE_CHECKING:
    from monitor.side.export.metrics import Metrics


class Endpoints:
    """Answers from a `View` and from the side's own parts, on ``listener`` (bound already), in a thread for each
    path."""

    def __init__(self, listener: socket.socket, view: View, scores: OomScores, files: Worker, lines: Worker) -> None:
        self._view = view
        self._scores = scores
        self._files = files
        self._lines = lines
        self._metrics: Metrics | None = None
        self._metrics_lock = threading.Lock()
        self._server = http.Server(
            listener,
            {
                "/metrics": lambda accept: self._made_metrics().render(accept),
                "/healthz": self._healthz,
                "/readyz": self._readyz,
                "/stats/summary": lambda _: stats_summary.render(view),
            },
            on_error=lambda problem: view.log.error("http request failed", problem=problem),
            by_accept=("/metrics",),
        )
        self._server.start()

    def _made_metrics(self) -> Metrics:
        """Made at the first scrape: prometheus_client costs 4 MB on top of the HTTP server."""
        with self._metrics_lock:
            if self._metrics is None:
                from monitor.side.export.metrics import Metrics

                self._metrics = Metrics(self._view, self._scores, self._files, self._lines, self._server)
            return self._metrics

    def _healthz(self, _accept: str) -> http.Response:
        if not self._view.side_lives():
            return http.text(503, "the side's main loop does not turn")
        return http.text(200, "ok") if self._view.hot_lives() else http.text(503, "the hot loop does not turn")

    def _readyz(self, _accept: str) -> http.Response:
        reason = self._view.not_ready()
        return http.text(503, reason) if reason else http.text(200, "ok")
