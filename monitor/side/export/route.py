"""Who answers the requests of one route: one thread, which makes one answer for all that wait for the same.

So a storm of scrapes is one rendering, and a route that hangs (a cgroup file that does not answer) holds up nobody but
those who asked for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

#: Requests that wait for one route.
MAX_WAITING = 32
#: The same failure of a route is reported once in this time (seconds): whoever asks decides how often it fails.
_REPEAT_S = 10.0


class Response(NamedTuple):
    status: int
    content_type: str
    body: bytes


#: A route gets the Accept header ("" if there is none).
Route = Callable[[str], Response]


def text(status: int, body: str) -> Response:
    """A plain text answer; a newline is added."""
    return Response(status, "text/plain; charset=utf-8", body.encode() + b"\n")


class RouteWorker:
    """``answered(asker, response)`` is called on its thread; ``varies``: the answer depends on the Accept."""

    def __init__(
        self,
        path: str,
        route: Route,
        answered: Callable[[Any, Response], None],
        on_error: Callable[[str], None],
        varies: bool = False,
    ) -> None:
        self._path = path
        self._route = route
        self._answered = answered
        self._on_error = on_error
        self._varies = varies
        self._changed = threading.Condition()
        self._waiting: list[tuple[Any, str]] = []
        self._asked = 0  # waiting, or being answered
        self._thread: threading.Thread | None = None
        self._ending = False
        self._logged: tuple[str, float] = ("", 0.0)

    def ask(self, asker: Any, accept: str) -> bool:
        """Have the asker answered; False if too many wait already, or nobody can be had to answer."""
        with self._changed:
            if self._asked >= MAX_WAITING:
                return False
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=f"http {self._path}", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # no thread can be started
                    self._report(f"{self._path}: {error}")
                    return False
                self._thread = thread
            self._asked += 1
            self._waiting.append((asker, accept))
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
            groups: dict[str, list[Any]] = {}
            for asker, accept in taken:
                groups.setdefault(accept if self._varies else "", []).append((asker, accept))
            for group in groups.values():
                response = self._made(group[0][1])
                for asker, _ in group:
                    self._answered(asker, response)
                with self._changed:
                    self._asked -= len(group)

    def _made(self, accept: str) -> Response:
        try:
            return self._route(accept)
        except Exception as error:  # noqa: BLE001 - one bad answer must not end the thread in silence
            self._report(f"{self._path}: {type(error).__name__}: {error}")
            return text(500, "internal error; see the log")

    def _report(self, problem: str) -> None:
        now = time.monotonic()
        logged, when = self._logged
        if problem != logged or now - when > _REPEAT_S:
            self._logged = (problem, now)
            self._on_error(problem)
