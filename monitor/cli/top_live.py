"""`outrace top` on a terminal: a thread looks once a second, the keys are answered meanwhile."""

from __future__ import annotations

import contextlib
import os
import threading
import time

from monitor.cli.terminal import Terminal
from monitor.cli.top_sample import Sample, Sampler
from monitor.cli.top_screen import View, problem, screen
from monitor.errors import MonitorError

#: Between two looks.
REFRESH_S = 1.0
#: A look that hangs (a disk, a daemon) is not waited for longer than this at the end.
_LEAVE_S = 0.5


class Looker:
    """Looks in a thread of its own, when asked to. ``wake`` can be read when there is a new sample, or an error."""

    def __init__(self, sampler: Sampler) -> None:
        self.sample: Sample | None = None
        self.problem = ""  # why the last look failed; "" when it did not
        self.failure: BaseException | None = None  # a defect: for the view to raise
        self.busy = False
        self._sampler = sampler
        self._asked = threading.Event()
        self._ended = False
        self.wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="looks", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Have a look, unless one is under way."""
        if not self.busy:
            self.busy = True
            self._asked.set()

    def taken(self) -> None:
        """What was to be read of ``wake`` is read."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)

    def close(self) -> None:
        """End the thread; one that hangs ends with the process."""
        self._ended = True
        self._asked.set()
        self._thread.join(_LEAVE_S)
        if not self._thread.is_alive():
            os.close(self.wake)
            os.close(self._woken)

    def _run(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            if self._ended:
                return
            try:
                self.sample = self._sampler.sample()
                self.problem = ""
            except MonitorError as error:
                self.problem = str(error)
            except BaseException as error:  # noqa: BLE001 - raised by the view, whose terminal is put back first
                self.failure = error
            self.busy = False
            with contextlib.suppress(OSError):
                os.write(self._woken, b"!")


def live(sampler: Sampler) -> None:
    """Until `q`, Ctrl-C or the end of the terminal. Raises what a look raised."""
    looker = Looker(sampler)
    try:
        with Terminal(looker.wake) as terminal:
            _run(looker, terminal)
    finally:
        looker.close()


def _run(looker: Looker, terminal: Terminal) -> None:
    view = View()
    due = 0.0
    while not view.ended and not terminal.ended:
        now = time.monotonic()
        if now >= due:
            looker.ask()
            due = now + REFRESH_S
        if looker.failure is not None:
            raise looker.failure
        _draw(looker, view, terminal)
        try:
            keys = terminal.wait(due - now)
        except EOFError:
            return
        looker.taken()
        for key in keys:
            view.press(key)


def _draw(looker: Looker, view: View, terminal: Terminal) -> None:
    width, height = terminal.size()
    if looker.sample is None:
        terminal.draw(problem(looker.problem or "looking...", width, height))
        return
    sample = looker.sample
    if looker.problem:
        frame = {**sample.frame, "problems": [looker.problem, *sample.frame["problems"]]}
        sample = sample._replace(frame=frame)
    terminal.draw(screen(sample, view, width, height))
