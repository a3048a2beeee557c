"""The processes of the lab (`monitor.lab.worker`) as their parent sees them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from monitor.errors import MonitorError
from monitor.kernel.procfs import readable

_WORKER = Path(__file__).with_name("worker.py")
#: Only a hang takes so long, also on an emulated machine (where compiling the programs takes half a minute).
PATIENCE_S = 120.0
#: Without site-packages and environment: 25 ms to start instead of 60.
PYTHON = (sys.executable, "-S", "-E")


def until(condition: Callable[[], bool], what: str, timeout: float = PATIENCE_S, pause: float = 0.002) -> None:
    """Poll for a state that no event announces. Raises MonitorError after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise MonitorError(f"waited {timeout:g} s for {what}")
        time.sleep(pause)


class Child:
    """A worker: it takes orders as lines on stdin and answers with lines on stdout."""

    #: Whether it outlives this process: in a session of its own, which neither Ctrl-C nor a closed terminal reaches.
    survives = False

    def __init__(self, worker: str, /, **options: object) -> None:
        parent = 0 if self.survives else os.getpid()
        self.process = subprocess.Popen(
            [*PYTHON, str(_WORKER), worker, str(parent), json.dumps(options, default=str)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=self.survives,
        )
        self._buffer = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def oom_score_adj(self) -> int:
        return int(Path(f"/proc/{self.pid}/oom_score_adj").read_text())

    @oom_score_adj.setter
    def oom_score_adj(self, score: int) -> None:
        Path(f"/proc/{self.pid}/oom_score_adj").write_text(str(score))

    def go(self) -> None:
        """Begin. (A hog takes its memory; `expect("grown")` waits until it has.)"""
        self.send("go")

    def free(self) -> None:
        """A hog gives its memory back."""
        self.send("free")
        self.expect("freed")

    def send(self, line: object) -> None:
        """Send one line. That a child is dead is noticed by waiting for its answer."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()

    def answer(self, timeout: float = PATIENCE_S) -> str:
        """The next line the child prints, or "" if it ended instead. MonitorError after ``timeout`` seconds."""
        assert self.process.stdout is not None
        out = self.process.stdout.fileno()
        while b"\n" not in self._buffer:
            if not readable(out, timeout):
                raise MonitorError(f"process {self.pid} of the lab did not answer within {timeout:g} s")
            data = os.read(out, 4096)
            if not data:
                return ""
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode()

    def expect(self, word: str) -> str:
        """As `answer`, which must begin with ``word``; returns what follows. MonitorError if it does not."""
        line = self.answer()
        first, _, rest = line.partition(" ")
        if first == word:
            return rest
        reason = self.close() or f"it ended with {self.process.returncode}"
        raise MonitorError(f"process {self.pid} of the lab printed {line!r} instead of {word!r}: {reason}")

    def close_stdin(self) -> None:
        """Let it end by itself."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def wait(self, timeout: float = PATIENCE_S) -> int:
        """Exit status (negative: the signal). MonitorError after ``timeout`` seconds."""
        # `Popen.wait(timeout)` looks every 50 ms: the hot process waits no longer for a status to be fetched.
        if self.process.poll() is None:
            pidfd = os.pidfd_open(self.pid)
            try:
                if not readable(pidfd, timeout):
                    raise MonitorError(f"process {self.pid} of the lab did not end within {timeout:g} s")
            finally:
                os.close(pidfd)
        return self.process.wait()

    def close(self) -> str:
        """End it, if it has not ended, and reap it. Returns the last line that it had written to stderr."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        written = b""
        if self.process.stderr is not None and not self.process.stderr.closed:
            os.set_blocking(self.process.stderr.fileno(), False)  # children of its own may have it open
            written = self.process.stderr.read() or b""
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):  # an unsent line of a child that died
                if stream is not None:
                    stream.close()
        return written.decode(errors="replace").strip().rpartition("\n")[2]


class Janitor(Child):
    """Removes what it is sent (monitor/lab/janitor.py) when this process finishes it, or has ended."""

    survives = True

    def __init__(self) -> None:
        super().__init__("monitor.lab.janitor:janitor")
        self.expect("ready")

    def finish(self) -> bool:
        """Whether all could be removed."""
        self.close_stdin()
        all_gone = self.wait() == 0
        self.close()
        return all_gone
