"""The processes of the lab as their parent sees them: workers (`monitor.lab.worker`) and the janitor."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from monitor.errors import MonitorError
from monitor.kernel.procfs import readable

_WORKER, _JANITOR = (Path(__file__).with_name(name) for name in ("worker.py", "janitor.py"))
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

    def __init__(self, worker: str, /, **options: object) -> None:
        words = [f"{key}={value}" for key, value in options.items()]
        self.process = subprocess.Popen(
            [*PYTHON, str(_WORKER), worker, *words, f"parent={os.getpid()}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
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

    def send(self, line: str) -> None:
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


class Hog(Child):
    """A process that takes memory on request; its options are those of monitor/lab/hog.py."""

    def __init__(self, **options: object) -> None:
        super().__init__("monitor.lab.hog:hog", **options)

    def go(self) -> None:
        """Take the memory; `expect("grown")` waits until it is taken."""
        self.send("go")

    def free(self) -> None:
        """Give the memory back and wait until that is done."""
        self.send("free")
        self.expect("freed")


class Janitor:
    """Removes what it was told of when it is closed or this process has ended (monitor/lab/janitor.py)."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [*PYTHON, str(_JANITOR)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise MonitorError("the lab's janitor did not start")

    def add(self, what: Path | int) -> None:
        """A directory or cgroup, or the pid of one of this process's own: SIGTERM, after 5 s SIGKILL."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n".encode())
        self._process.stdin.flush()

    def close(self) -> bool:
        """Whether all could be removed."""
        self._process.communicate()
        return self._process.returncode == 0
