"""What processes that were killed changed in the kernel: undone as the helper starts, and as the hot process is ready,
and dies.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from monitor.actions.ledger import HOT, MARKS, RELAX, SCORES, SIDE, owner_of, this_daemon
from monitor.actions.oomadj import Logger
from monitor.actions.undo import undo_left
from monitor.kernel.cgroupfs import Hierarchy
from monitor.kernel.procfs import lives, readable
from monitor.settings.config import RunConfig

#: A hot process that has closed the channel is gone within 1 ms; its memory may take longer.
_HOT_ENDS_S = 1.0
#: The helper waits so long for the next daemon: Python starts in 0.1 s, on an emulated CPU in seconds.
NEXT_S = 5.0
#: The unit sets it: its ExecStopPost= undoes what is left, or leaves it to the daemon that systemd starts 1 s later.
_STOP_POST = "OUTRACE_STOP_POST"


class LeftChanges:
    """Of this helper's hot process, and of earlier daemons."""

    def __init__(self, config: RunConfig, hierarchy: Hierarchy, log: Logger, next_s: float = NEXT_S) -> None:
        self._config, self._hierarchy, self._log, self._next_s = config, hierarchy, log, next_s
        self._state_dirs, self._hot_pid = [Path(config.state_dir)], os.getppid()
        self._hot, self._holder = os.pidfd_open(self._hot_pid), owner_of(self._hot_pid)
        self._is_ready = False

    def at_start(self) -> None:
        """Undo soft brakes and oom_score_adj of an earlier helper; nothing is reclaimed, because limits are raised. The
        hot process takes over the holds.
        """
        undo_left(self._state_dirs, self._log, self._hierarchy, (SIDE, MARKS, SCORES))

    def at_ready(self) -> None:
        """The hot process has taken over the holds that memory is short for: undo the rest, in a thread."""
        if not self._is_ready:
            self._is_ready = True
            threading.Thread(target=self._undo_rest, name="left changes", daemon=True).start()

    def _undo_rest(self) -> None:
        """Holds of hot processes that have ended (15 us for each cgroup); and memory.high that an earlier helper
        raised: the kernel may reclaim in this thread, for seconds.
        """
        if self._config.holds:  # else the hot process has released them
            undo_left(self._state_dirs, self._log, self._hierarchy, (HOT,), spared=self._holder)
        undo_left(self._state_dirs, self._log, self._hierarchy, (RELAX,), spared=this_daemon())

    def at_end(self, listener: socket.socket) -> None:
        """Release the pods that the hot process held, if it has ended and no next one takes them over. While it runs it
        keeps holding them, and listening: only where it has ended is ``listener`` shut down for the next daemon.
        """
        if not self._config.holds or not readable(self._hot, _HOT_ENDS_S):
            return
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        if _STOP_POST not in os.environ and not self._next_one():  # systemd starts none before this process has ended
            undo_left(self._state_dirs, self._log, self._hierarchy)

    def _next_one(self) -> bool:
        """Whether a daemon is started on the same state dir: it keeps holds where memory is short, and releases the
        other pods. It writes its pid into the state dir's lock; to try the lock might keep it from starting.
        """
        deadline = time.monotonic() + self._next_s
        while time.monotonic() < deadline:
            with suppress(OSError, ValueError):
                pid = int(Path(self._config.state_dir, "lock").read_text())
                if pid != self._hot_pid and lives(pid):
                    return True
            time.sleep(0.02)
        return False
