"""Disks and process ids of the live node: sampled once a second, beside the main loop of the helper.

One thread samples (microseconds, but statvfs may hang on a dead network file system), another measures the pods'
directories (seconds, where they hold many files). The hot process gets figures only while a threshold is met, when a
pod is over a limit of its own, and when a clean-up is done (docs/disks.md).
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

from monitor.actions.reclaim import clean
from monitor.errors import MonitorError
from monitor.kernel.disks import Disks, file_system, pid_counts
from monitor.kernel.sched import take_time
from monitor.link.messages import DiskFigures
from monitor.pods.model import FoundPod
from monitor.pods.storage import Measured, Roots, measure, process_stats
from monitor.policy.kubelet_pass import is_limited, storage_violation
from monitor.policy.layout import DiskLayout
from monitor.policy.pods import Pod
from monitor.policy.releases import era
from monitor.policy.signals import KUBELET_SIGNALS, MEMORY_SIGNALS, OF_DISK, PID, Observation
from monitor.policy.stats import PodStats
from monitor.policy.thresholds import Threshold
from monitor.policy.victims import rank_pods
from monitor.settings.config import RunConfig
from monitor.side.export.log import Log
from monitor.side.worker import WatchedThread, Worker

#: Between two samples. The kubelet's is 10 s; a disk that writes 2 GB/s fills what a threshold of 10 % of 100 GB keeps
#: free in 5 s.
PERIOD_S = 1.0
#: So many pods of an order are sent, and so many violations: a pass evicts one pod, and a packet must stay small.
MOST = 50

Pods = Mapping[str, FoundPod]
T = TypeVar("T")


@dataclass(eq=False)
class DiskWatch:
    """Watches ``disks`` and the process ids, and measures ``pods()`` (by uid) when that matters.

    ``send`` is called from a thread of this object; ``failed`` gets what one of its threads died of. Nothing is looked
    at, and no thread wakes, without a threshold for disks or process ids and without a pod that has a limit of local
    storage.
    """

    config: RunConfig
    disks: Disks
    pods: Callable[[], Pods]
    send: Callable[[DiskFigures], bool]
    failed: Callable[[Exception], None]
    log: Log
    roots: Roots | None = None

    def __post_init__(self) -> None:
        self.observations: Mapping[str, Observation] = {}  #: the latest of every signal that can be read, for metrics
        self._roots = self.roots or Roots.of(self.disks)
        self._era = era(self.config.policy)
        self._layout = DiskLayout(self.disks.layout_image_fs)
        self._thresholds = _of_disks(self.config)
        self._cleaner: Worker | None = None
        self._stop_fd = -1  # readable: a clean-up is to end
        self.cleanups: Counter[str] = Counter()  # by result, for metrics; written by the cleaner's thread alone

        self._closing = threading.Event()
        self._sampler = WatchedThread("disks", self._turn, self._closing, self.failed)
        self._walker = WatchedThread("storage", self._measure_next, self._closing, self.failed)

        # Of the sampling thread alone:
        self._seen: Pods = {}
        self._again = False  # the last message had a signal below its threshold, or was not sent
        self._ranked = False  # every pod has been measured since a disk became short
        self._failing: dict[str, str] = {}  # what could not be read at some time -> why, as logged; "" if it can now

        # Of both threads, written by one of them:
        self._urgent = False  # a disk is short
        self._measured: Mapping[str, Measured] = {}  # by uid

        # Of the sampling thread and others, each access one step:
        self._violations: dict[str, str] = {}  # uid -> message, found and not yet sent
        self._is_cleaned = False  # a clean-up is over, and not yet reported
        self.orders: Mapping[str, Sequence[str]] = {}  # signal -> uids in the order of eviction, as sent last

    def start(self) -> None:
        """Begin to look, unless there is nothing that could matter. The threads end with the process."""
        if self._thresholds or self.config.local_storage:
            self._sampler.start()
            self._walker.start()

    def pods_changed(self) -> None:
        """Look at once: ``pods()`` has changed. Where there are no thresholds nothing else wakes the threads."""
        self._sampler.wake()
        self._walker.wake()

    def pod_stats(self, uid: str) -> PodStats | None:
        """What the pod took of the disks when it was last measured."""
        measured = self._measured.get(uid)
        return None if measured is None else measured.stats

    def reclaim(self) -> None:
        """Clean up the node, where that is configured and enforced; the message that it is done has later figures."""
        if not (self.config.enforce and self.config.reclaim_images):
            return  # the hot process asks for none then
        if self._cleaner is None:  # few nodes ever clean up
            self._stop_fd, self._cleaner = os.eventfd(0, os.EFD_CLOEXEC), Worker("clean-up", 1)
        if not self._cleaner.waiting:
            self._cleaner.submit(self._clean)

    def stalled_s(self) -> float:
        """For how many seconds a call has been hanging, as on a dead network file system; 0 if none does."""
        return max(self._sampler.stalled_s(), self._walker.stalled_s())

    def close(self, timeout_s: float = 2.0) -> None:
        """End the threads, the walk and the clean-up under way; what hangs is left behind after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        self._closing.set()
        for thread in (self._sampler, self._walker):
            thread.wake()
        if self._cleaner is not None:
            os.eventfd_write(self._stop_fd, 1)
            self._cleaner.close(timeout_s)
        for thread in (self._sampler, self._walker):
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _clean(self) -> None:
        if self._closing.is_set():
            return
        take_time()
        self.cleanups[clean(self.config.reclaim_images, self.log, self._stop_fd)] += 1
        self._is_cleaned = True
        self._sampler.wake()

    # the node, every second

    def _turn(self) -> float | None:
        # Looked at before the disks are sampled, so that the figures are newer than the clean-up.
        cleaned, violations = self._is_cleaned, dict(self._violations)
        if cleaned:
            self._is_cleaned = False
        observations = dict(self._observe()) if self._thresholds else {}
        self.observations = observations
        met = self._met(observations)
        pods = self.pods()
        urgent = any(signal != PID for signal in met)
        if urgent != self._urgent or pods is not self._seen:
            self._urgent, self._seen = urgent, pods
            self._walker.wake()
        for uid in violations.keys() - pods.keys():
            del violations[uid], self._violations[uid]
        if met or self._again or violations or cleaned:
            watched = {threshold.signal for threshold in self._thresholds}
            message = DiskFigures(
                observations={signal: list(seen) for signal, seen in observations.items() if signal in watched},
                orders=self._orders(met, pods),
                violations=dict(islice(violations.items(), MOST)),
                cleaned=cleaned,
            )
            self._again = not self._sent(message) or bool(met)
        return PERIOD_S if self._thresholds or self._again or self._violations else None

    def _sent(self, message: DiskFigures) -> bool:
        """Send it; what was not sent is in the next one."""
        if not self.send(message):
            if message.cleaned:
                self._is_cleaned = True
            self.log.warning("the hot process takes no messages: figures of the disks wait")
            return False
        self.orders = message.orders
        for uid in message.violations:
            self._violations.pop(uid, None)
        return True

    def _observe(self) -> Iterator[tuple[str, Observation]]:
        """Every signal that can be read, in the order of `KUBELET_SIGNALS`."""
        nodefs, imagefs, _ = self.disks
        for path, (space, inodes) in zip((nodefs, imagefs, imagefs), OF_DISK, strict=True):
            found = self._readable(space, partial(file_system, path))
            if found is None:
                continue
            stamp = time.monotonic_ns()
            yield space, Observation(found.available, found.capacity, stamp)
            if found.inodes is not None and found.inodes_free is not None:
                yield inodes, Observation(found.inodes_free, found.inodes, stamp)
        counts = self._readable(PID, pid_counts)
        if counts is not None:
            most, running = counts
            yield PID, Observation(most - running, most, time.monotonic_ns())

    def _met(self, observations: Mapping[str, Observation]) -> list[str]:
        """The signals below a threshold, or not yet above what a threshold wants reclaimed; grace does not matter."""
        found = set()
        for threshold in self._thresholds:
            seen = observations.get(threshold.signal)
            if seen is not None and any(threshold.met(seen.available, seen.capacity, more) for more in (False, True)):
                found.add(threshold.signal)
        return [signal for signal in KUBELET_SIGNALS if signal in found]

    def _orders(self, met: Sequence[str], pods: Pods) -> dict[str, list[str]]:
        """The pods that an eviction for each of these signals would choose, first victim first.

        A pod that was never measured would rank before all others, so there is no order before every pod was measured;
        a pod that is new then is left out until it is measured.
        """
        if not self._urgent:
            self._ranked = False
        candidates = {uid: found for uid, found in pods.items() if not self._era.is_critical(found.pod)}
        measured = self._measured
        stats = {uid: measured[uid].stats for uid in candidates if uid in measured}
        self._ranked = self._ranked or (self._urgent and len(stats) == len(candidates))
        figures = {signal: stats for signal in met if self._ranked and signal != PID}
        if PID in met:
            counted = self._readable(
                "processes of pods", lambda: {uid: process_stats(found) for uid, found in candidates.items()}
            )
            figures |= {} if counted is None else {PID: counted}
        return {signal: self._order(signal, candidates, figures[signal]) for signal in met if signal in figures}

    def _order(self, signal: str, candidates: Pods, stats: Mapping[str, PodStats]) -> list[str]:
        ranked = rank_pods(signal, [candidates[uid].pod for uid in stats], stats, self._layout, self._era)
        return [one.pod.uid for one in ranked[:MOST]]

    def _readable(self, what: str, read: Callable[[], T]) -> T | None:
        """What ``read`` gives. None if it cannot be read, which is logged once, and once that it can again."""
        found, problem = None, ""
        try:
            found = read()
        except MonitorError as error:
            problem = str(error)
        if problem != self._failing.get(what, ""):
            self._failing[what] = problem
            if problem:
                self.log.error(problem, signal=what)
            else:
                self.log.info("disk or process figures can be read again", signal=what)
        return found

    # the pods, one after the other

    def _measure_next(self) -> float | None:
        """Measure the pod that is due; returns how long to wait for the next, None: until `wake`."""
        pods = self.pods()
        if any(uid not in pods for uid in self._measured):
            self._measured = {uid: known for uid, known in self._measured.items() if uid in pods}
        measured = self._measured
        due = {
            uid: measured[uid].due_s(self._urgent) if uid in measured else 0.0
            for uid, found in pods.items()
            if self._wanted(found.pod)
        }
        if not due:
            return None
        uid = min(due, key=due.__getitem__)
        wait = due[uid] - time.monotonic()
        if wait > 0:
            return wait
        before = self._measured.get(uid)
        found = measure(pods[uid], self._roots, self._interrupted)
        if self._closing.is_set():
            return None
        self._measured = {**self._measured, uid: found}
        for problem in found.problems:
            if before is None or problem not in before.problems:
                self.log.warning(problem)
        self._judge(pods[uid].pod, found.stats)
        if before is None:
            if self._urgent and all(uid in self._measured for uid in due):
                self._sampler.wake()  # it waits for this
            return 0.0
        return found.took_s  # walking again what is known already takes half of a CPU at most

    def _wanted(self, pod: Pod) -> bool:
        return (self._urgent or (self.config.local_storage and is_limited(pod))) and not self._era.is_critical(pod)

    def _judge(self, pod: Pod, stats: PodStats) -> None:
        if not self.config.local_storage:
            return
        message = storage_violation(pod, stats, self._layout, sidecars=self._era.sidecar_storage)
        if message is not None:
            self._violations[pod.uid] = message
            self._sampler.wake()

    def _interrupted(self) -> bool:
        """Called by a walk every few hundred files: also shows that it does not hang."""
        self._walker.begin_turn()
        return self._closing.is_set()


def _of_disks(config: RunConfig) -> list[Threshold]:
    """The thresholds of disks and process ids."""
    return [t for t in config.thresholds() if t.signal not in MEMORY_SIGNALS and t.operator]
