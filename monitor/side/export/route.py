"""The answers of a path, and the share of a CPU that making them and serving its clients may use.

A storm of scrapes is one rendering (`Shared`), and a route that hangs (a cgroup file that does not answer) holds up
only the clients of the paths that share it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

#: Requests that wait for the routes of one `Shared`.
MAX_WAITING = 32
#: Seconds for which a rendering is served again. A scraper asks every 15 to 60 s.
FRESH_S = 1.0
#: The part of a CPU that renderings take, all together, and that of connections and requests (0.1 ms each). The sum is
#: 2 %, because helper and hot may share a quota.
RENDER_SHARE = 0.01
CLIENT_SHARE = 0.01
#: CPU time that clients can save up, seconds: 500 requests at once.
BURST_S = 0.05
#: A debt that takes longer than this to earn is waived: an emulated CPU takes 5 to 15 ms to wake up.
LONGEST_S = 2.0
#: The same failure of a route is reported once in this time (seconds): clients decide how often it fails.
_REPEAT_S = 10.0


class Response(NamedTuple):
    status: int
    content_type: str
    body: bytes


#: A route gets the Accept header: "" or `OPENMETRICS`.
Route = Callable[[str], Response]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def text(status: int, body: str) -> Response:
    """A plain text answer; a newline is added."""
    return Response(status, "text/plain; charset=utf-8", body.encode() + b"\n")


class Budget:
    """``share`` of a CPU for all threads that `spend` from it, of which `BURST_S` can be saved up."""

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._clock = clock
        self._earned_at = -math.inf
        self._lock = threading.Lock()

    def spend(self, cpu_s: float) -> float:
        """Seconds until the CPU time of all callers is earned: threads that sleep so long run one after the other."""
        with self._lock:
            now = self._clock()
            earned_at = max(self._earned_at, now - BURST_S / self._share) + cpu_s / self._share
            self._earned_at = min(earned_at, now + LONGEST_S)
            return max(0.0, self._earned_at - now)


@dataclass(eq=False)
class Shared:
    """Answers of ``routes`` (by path), made by one thread at a time; those that wait for the same answer get one.

    Making them takes at most ``share`` of a CPU. An answer is given for ``fresh_s`` seconds; with 0 only to requests
    that came before it was begun.
    """

    routes: Mapping[str, Route]
    on_error: Callable[[str], None]
    share: float = 1.0
    fresh_s: float = 0.0
    clock: Callable[[], float] = time.monotonic  # seconds, as the next
    cpu: Callable[[], float] = time.thread_time
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._due = -math.inf
        self._room = threading.Semaphore(MAX_WAITING)
        self._one = threading.Lock()
        self._made: dict[tuple[str, str], tuple[float, Response]] = {}
        self._logged: tuple[str, float] = ("", 0.0)

    @property
    def is_kept(self) -> bool:
        """Whether its answers are kept, and making them is paid for here."""
        return self.fresh_s > 0

    def ask(self, path: str, accept: str) -> Response | None:
        """From any thread; None if too many wait already."""
        # There are two formats: a client must not cause a rendering for each spelling of Accept.
        key = (path, OPENMETRICS if "application/openmetrics-text" in accept else "")
        since = self.clock() - self.fresh_s
        if (kept := self._kept(key, since)) is not None:
            return kept
        if not self._room.acquire(blocking=False):
            return None
        try:
            with self._one:
                return self._kept(key, since) or self._make(*key)
        finally:
            self._room.release()

    def _kept(self, key: tuple[str, str], since: float) -> Response | None:
        made_at, response = self._made.get(key, (-math.inf, None))
        return response if made_at >= since else None

    def _make(self, path: str, accept: str) -> Response:
        if (wait_s := self._due - self.clock()) > 0:
            self.sleep(wait_s)
        began, before = self.clock(), self.cpu()
        try:
            response = self.routes[path](accept)
        except Exception as error:  # noqa: BLE001 - one bad answer must not end the thread in silence
            self._report(f"{path}: {type(error).__name__}: {error}")
            response = text(500, "internal error; see the log")
        # The first one imports what renders: 0.1 s of CPU once, for which no client has to wait 10 s.
        if (path, accept) in self._made:
            self._due = self.clock() + (self.cpu() - before) * (1 / self.share - 1)
        self._made[path, accept] = began, response
        return response

    def _report(self, problem: str) -> None:
        now = self.clock()
        logged, when = self._logged
        if problem != logged or now - when > _REPEAT_S:
            self._logged = (problem, now)
            self.on_error(problem)
