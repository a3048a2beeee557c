"""Pods of a cluster (``--pods kubelet``, ``--pods apiserver``), matched to their cgroups by uid."""

from __future__ import annotations

import select
import time

from monitor.pods.cgroup_tree import class_dirs, search_dirs, tree_uids
from monitor.pods.feed import PodFeed
from monitor.pods.inotify import CHILDREN
from monitor.pods.manifest_files import Manifest
from monitor.pods.model import Change, Scan, Within
from monitor.pods.spec_source import SpecSource

#: A cgroup whose pod is not listed for so long is reported; the kubelet makes it up to a second before.
UNLISTED_S = 10.0
#: A container has come or gone: for so long its pod's status changes. A kubelet writes the id of one within a second,
#: and an eviction after 0.1 s; incidents wait 2 s.
CHANGING_S = 2.0


class ClusterSource(SpecSource):
    """Pods of ``feed``. One whose cgroup is there and that is not in the list (yet) is no pod: nothing is guessed."""

    HOLDS_US = "it is never evicted"  # as a DaemonSet is meant to be
    AWAITS = False  # the kubelet makes a cgroup when the pod's volumes are there: minutes, at times
    is_complete = False  # until a scan knew all pods

    def __init__(self, feed: PodFeed, within: Within) -> None:
        super().__init__(within)
        self.feed = feed
        self._unlisted: dict[str, float] = {}  # uid -> since when (monotonic seconds)
        self._ready = select.epoll()
        for fd in (feed.fileno(), self._watcher.fileno()):
            if fd is not None:
                self._ready.register(fd, select.EPOLLIN)
        feed.start()

    @property
    def is_failing(self) -> bool:
        return self.feed.is_failing

    def fileno(self) -> int | None:
        return self._ready.fileno()

    def poll(self) -> Change:
        if self.feed.drain():
            self._next_scan = 0.0
        return super().poll()

    def close(self) -> None:
        self.feed.close()
        self._ready.close()
        super().close()

    def _scan(self) -> Scan:
        scan = Scan()
        self._find_kubepods()
        self.is_complete = self.feed.is_known  # before what is known is taken: it may be more a moment later
        listed = self.feed.manifests(self.pods)
        scan.problems.extend(self.feed.problems())
        before = dict(self._ids)
        self._match(scan, listed)
        if self._ids != before:
            self.feed.soon(CHANGING_S)
        above = search_dirs(self.node) if self.kubepods is None else class_dirs(self.kubepods)
        scan.watch.update(dict.fromkeys(above, CHILDREN))
        self._find_unlisted(scan, listed)
        running = sum(one.pod.phase == "Running" for one in listed)
        if running and not scan.pods and self._outside is None:
            where = self.kubepods or f"any kubepods below {self.node}"
            scan.problems.append(
                f"{self.feed.where}: none of {running} running pods has a cgroup in {where}: "
                "give the kubelet's cgroupRoot in --kubelet-config FILE, or the right --node-name"
            )
        return scan

    def _find_unlisted(self, scan: Scan, manifests: list[Manifest]) -> None:
        listed = {uid for one in manifests for uid in tree_uids(one.pod)}
        now = time.monotonic()
        self._unlisted = {uid: self._unlisted.get(uid, now) for uid in self._dirs if uid not in listed}
        self.unlisted = tuple(self._unlisted)
        if not self._unlisted:
            return
        self.feed.soon()
        scan.unsettled = True
        for uid, since in self._unlisted.items():
            if now - since >= UNLISTED_S:
                scan.problems.append(
                    f"{self.feed.where}: has no pod {uid}, whose cgroup is {self._dirs[uid].path}: "
                    "it is not watched, and never evicted"
                )
