"""The pods, watched from a thread of their own: a manifest directory on a network file system may hang for ever, and
the main loop of the helper has more to do than to wait for it.
"""

from __future__ import annotations

import os
import queue
import select
import threading
import time
from collections.abc import Callable, Iterator

from monitor.errors import MonitorError
from monitor.link.messages import PodSeen
from monitor.pods.model import Change, FoundPod, PodSource
from monitor.policy.releases import CURRENT, Era
from monitor.policy.synchronize import DEFAULT_POD_GRACE_S

#: The least pause between two lists where no event announces a change.
_POLL_S = 1.0
#: A look that takes longer than this many seconds hangs: 110 manifests take a tenth of one.
STALLED_S = 5.0


class PodWatch:
    """Polls ``source`` from its own thread; ``wake()`` is called there when `take` has something."""

    def __init__(self, source: PodSource, wake: Callable[[], None]) -> None:
        self.source = source
        self._look_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # written, the next look begins at once
        self._wake = wake
        self.looks = 0  # that are over, and what they found can be taken
        self._found: queue.SimpleQueue[Change | Exception] = queue.SimpleQueue()
        self._began: float | None = None  # when the look that is under way began (monotonic seconds)
        self._known = threading.Event()

    def start(self) -> None:
        """Begin to look. The thread ends with the process."""
        threading.Thread(target=self._run, name="pods", daemon=True).start()

    def look_soon(self) -> int:
        """Have a look begun at once, from any thread; how many are over."""
        os.eventfd_write(self._look_fd, 1)
        return self.looks

    def doubt(self, uid: str) -> None:
        """Have the processes of a pod looked at again, where they say whether it may be evicted."""
        if self.source.doubt(uid):
            self.look_soon()

    def wait_known(self, timeout_s: float) -> bool:
        """Wait for the first complete look; whether there was one."""
        return self._known.wait(timeout_s)

    def take(self) -> Iterator[Change | MonitorError]:
        """What was found since the last call, and lists that failed. Raises errors other than MonitorError."""
        while self._found.qsize():
            found = self._found.get()
            if isinstance(found, Exception) and not isinstance(found, MonitorError):
                raise found
            yield found

    def stalled_s(self) -> float:
        """For how many seconds the present list has been hanging; 0 if it does not."""
        began = self._began
        took = 0.0 if began is None else time.monotonic() - began
        return took if took > STALLED_S else 0.0

    def _run(self) -> None:
        poll = select.poll()
        fd = self.source.fileno()
        if fd is not None:
            poll.register(fd, select.POLLIN)
        poll.register(self._look_fd, select.POLLIN)
        try:
            while True:
                self._rest(self._look())
                ready = poll.poll(1000 * max(_POLL_S, self.source.due_s()))
                if any(fd == self._look_fd for fd, _ in ready):
                    os.eventfd_read(self._look_fd)
        except Exception as error:  # noqa: BLE001 - raised again by `take`: a thread that ends in silence would be worse
            self._found.put(error)
            self._wake()

    def _rest(self, took_s: float) -> None:
        """After a look, so that events that others cause take a quarter of a CPU at most; `look_soon` ends it."""
        poll = select.poll()
        poll.register(self._look_fd, select.POLLIN)
        poll.poll(1000 * min(_POLL_S, 3 * took_s))

    def _look(self) -> float:
        """Look once; the seconds it took."""
        began = self._began = time.monotonic()
        try:
            found: Change | MonitorError = self.source.poll()
        except MonitorError as error:
            found = error
        self._began = None
        if found != Change():
            self._found.put(found)
        if not isinstance(found, MonitorError) and self.source.is_complete:
            self._known.set()  # after the queue has it: a waiting thread finds it there
        self.looks += 1
        if found != Change():
            self._wake()
        return time.monotonic() - began


def pod_message(found: FoundPod, era: Era = CURRENT) -> PodSeen:
    """What the hot process is sent about a pod."""
    pod = found.pod
    request, nanos = divmod(era.request(pod, "memory").nanos, 10**9)
    return PodSeen(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        priority=pod.known_priority,
        spec_known=pod.spec_known,
        request=request,
        request_nanos=nanos,
        qos=era.qos_class(pod),
        critical=era.is_critical(pod),
        grace_s=DEFAULT_POD_GRACE_S if pod.grace_period_s is None else pod.grace_period_s,
        cgroup=str(found.cgroup),
        containers={name: str(path) for name, path in found.containers.items()},
    )
