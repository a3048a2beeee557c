"""What answers a path: a thread that makes one answer for all that wait for the same, and the copies that it keeps.

So a storm of scrapes is one rendering, and a route that hangs (a cgroup file that does not answer) holds up only the
clients of that route.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

#: Requests that wait for one worker.
MAX_WAITING = 32
#: Seconds for which a copy answers everything. A scraper comes every 15 to 60 s.
FRESH_S = 1.0
#: The part of a CPU that renderings take, all together, and that of connections and requests (0.1 ms each). The sum is
#: 2 %, because side and hot may share a quota.
RENDER_SHARE = 0.01
CLIENT_SHARE = 0.01
#: CPU time that clients can save up, seconds: 500 requests at once.
BURST_S = 0.05
#: The same failure of a route is reported once in this time (seconds): clients decide how often it fails.
_REPEAT_S = 10.0


class Response(NamedTuple):
    status: int
    content_type: str
    body: bytes


#: A route gets the Accept header: "" or `OPENMETRICS`.
Route = Callable[[str], Response]
#: A path, and the Accept that its answer depends on.
Key = tuple[str, str]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def text(status: int, body: str) -> Response:
    """A plain text answer; a newline is added."""
    return Response(status, "text/plain; charset=utf-8", body.encode() + b"\n")


def form(accept: str) -> str:
    """An Accept header as one of the two formats there are: a client must not have a rendering for each way to ask."""
    return OPENMETRICS if "application/openmetrics-text" in accept else ""


class Budget:
    """``share`` of a CPU, of which ``burst_s`` seconds can be saved up. ``cpu``: the CPU time of the calling thread,
    which is spent by being used; without one it is spent by `spend` alone. What takes longer than ``longest_s`` to
    earn is given.
    """

    def __init__(
        self,
        share: float,
        burst_s: float = BURST_S,
        cpu: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.monotonic,
        longest_s: float = math.inf,
    ) -> None:
        self._share = share
        self._burst_s = burst_s
        self._least_s = -longest_s * share
        self._cpu = cpu
        self._clock = clock
        self._counted_s: float | None = None
        self._left_s = burst_s
        self._since = clock()

    def spend(self, cpu_s: float) -> None:
        now = self._clock()
        earned_s = min(self._burst_s, self._left_s + (now - self._since) * self._share)
        self._left_s = max(earned_s - cpu_s, self._least_s)
        self._since = now

    def debt_s(self) -> float:
        """Seconds until what was spent is earned; 0 when there is something left."""
        used_s = self._cpu()
        self.spend(0.0 if self._counted_s is None else used_s - self._counted_s)
        self._counted_s = used_s
        return max(0.0, -self._left_s / self._share)

    def rested(self) -> None:
        """To wait for the share and to wake up spends nothing: an emulated CPU takes 5 to 15 ms for it, which is more
        than a second of 1 % earns.
        """
        self._counted_s = self._cpu()


class Copies:
    """Answers that are made at most once in `FRESH_S`, and all of them with at most `RENDER_SHARE` of a CPU."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``clock`` and ``cpu`` (of the thread that renders) are in seconds."""
        self._clock = clock
        self._cpu = cpu
        self._sleep = sleep
        self._budget = Budget(RENDER_SHARE, 0.0, clock=clock)
        self._made: dict[Key, tuple[float, Response]] = {}
        self._tried: set[Key] = set()

    def fresh(self, key: Key) -> Response | None:
        """From any thread."""
        made_at, response = self._made.get(key, (-FRESH_S, None))
        return response if self._clock() - made_at < FRESH_S else None

    def render(self, key: Key, route: Route) -> Response:
        """On the thread that renders; sleeps until the CPU time of earlier renderings is earned."""
        if (kept := self.fresh(key)) is not None:
            return kept
        if (debt_s := self._budget.debt_s()) > 0:
            self._sleep(debt_s)
        before, is_first = self._cpu(), key not in self._tried
        self._tried.add(key)
        try:
            response = route(key[1])
        finally:
            # The first one imports what renders: 0.1 s of CPU once, for which no client has to wait 10 s.
            if not is_first:
                self._budget.spend(self._cpu() - before)
        self._made[key] = (self._clock(), response)
        return response


class RouteWorker:
    """``answered(asker, response, cpu_s)`` is called on its thread, for which ``make`` took ``cpu_s``."""

    def __init__(
        self,
        name: str,
        make: Callable[[Key], Response],
        answered: Callable[[Any, Response, float], None],
        on_error: Callable[[str], None],
    ) -> None:
        self._name = name
        self._make = make
        self._answered = answered
        self._on_error = on_error
        self._changed = threading.Condition()
        self._waiting: list[tuple[Any, Key]] = []
        self._asked = 0  # waiting, or being answered
        self._thread: threading.Thread | None = None
        self._ending = False
        self._logged: tuple[str, float] = ("", 0.0)

    def ask(self, asker: Any, key: Key) -> bool:
        """Have the asker answered; False if too many wait already, or no thread can be started."""
        with self._changed:
            if self._asked >= MAX_WAITING:
                return False
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=f"http {self._name}", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # no thread can be started
                    self._report(f"{self._name}: {error}")
                    return False
                self._thread = thread
            self._asked += 1
            self._waiting.append((asker, key))
            self._changed.notify()
        return True

    def close(self) -> None:
        """End the thread when it has made its answer."""
        with self._changed:
            self._ending = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._ending:
                    self._changed.wait()
                if self._ending:
                    return
                taken, self._waiting = self._waiting, []
            groups: dict[Key, list[Any]] = {}
            for asker, key in taken:
                groups.setdefault(key, []).append(asker)
            for key, askers in groups.items():
                before = time.thread_time()
                response = self._made(key)
                cpu_s = time.thread_time() - before
                for asker in askers:
                    self._answered(asker, response, cpu_s / len(askers))
                with self._changed:
                    self._asked -= len(askers)

    def _made(self, key: Key) -> Response:
        try:
            return self._make(key)
        except Exception as error:  # noqa: BLE001 - one bad answer must not end the thread in silence
            self._report(f"{key[0]}: {type(error).__name__}: {error}")
            return text(500, "internal error; see the log")

    def _report(self, problem: str) -> None:
        now = time.monotonic()
        logged, when = self._logged
        if problem != logged or now - when > _REPEAT_S:
            self._logged = (problem, now)
            self._on_error(problem)
