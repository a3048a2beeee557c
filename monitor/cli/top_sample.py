"""One look of `outrace top`: the frame, with what is not of memory figures alone, and what the live view needs besides.

In the live view a thread of its own looks (`monitor.cli.top_live`), because a daemon, a kubelet or a disk may hang.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from monitor.cli.daemons import Daemon
from monitor.cli.top_frame import Node
from monitor.cli.top_kernel import ProcessLooks, composition
from monitor.cli.top_trends import Trends
from monitor.errors import MonitorError
from monitor.pods.source import open_for
from monitor.settings.config import RunConfig
from monitor.side.incidents.reader import FILE_NAME, IncidentReader
from monitor.side.view import pod_owners

#: Incidents that are kept with a frame, the newest first.
INCIDENTS = 5
#: What a frame has of each: the fields of `outrace incidents list -o json` that fit a line.
_OF_INCIDENT = (
    *("id", "start", "end", "domain", "verdict", "flags", "observed", "by", "evicted", "oom_victims"),
    *("margin_bytes", "margin_ms", "summary"),
)
#: A locked file of incidents is not waited for: the last ones are shown until the next look.
_WAIT_S = 0.2
#: Keys that may be missing in the answer of an older daemon.
_STATUS = ("mode", "rung", "trigger", "armed", "bound_bytes", "not_ready", "conditions", "lost")


class Sample(NamedTuple):
    frame: Mapping[str, Any]
    asked: str = ""  # the daemon that was asked, whether or not it answered; "" for none


class Sampler:
    """Looks at the node of ``config``, or of ``daemon``, which is followed: started again, or with another
    configuration, it is asked again. ``is_live`` as for `Node`. Raises MonitorError as `open_for` and `Node` do.
    """

    def __init__(self, config: RunConfig, daemon: Daemon | None = None, is_live: bool = False) -> None:
        self._is_live = is_live
        self._open(config, daemon)
        self._trends = Trends()
        self._looks = ProcessLooks()
        self._incidents: list[dict[str, Any]] = []
        self._stamp: tuple[int, int] | None = None  # of the file of incidents as it was read
        self._unread = ""

    def _open(self, config: RunConfig, daemon: Daemon | None) -> None:
        self.node = Node(config, daemon, self._is_live)
        self._source = open_for(config, self.node.hierarchy, self.node.mem_total, self.node.path)

    def close(self) -> None:
        self._source.close()

    def sample(self) -> Sample:
        """One look. May take some seconds where a daemon hangs. Raises MonitorError."""
        self._follow()
        node, source = self.node, self._source
        frame = node.frame(source)
        pods = {pod["uid"]: pod for pod in frame["pods"]}
        now_s = time.monotonic()
        sizes = {uid: pod["working_set"] for uid, pod in pods.items()}
        self._trends.remember(now_s, node.working_sets, sizes)
        domains = {"node": node.path, "kubepods": node.kubepods(source.pods)}
        self._trends.note(now_s, sizes | {name: frame[name]["working_set"] for name in domains if frame[name]})
        looked = self._looks.look(node.hierarchy, node.path, pod_owners(source.pods))
        nothing = {"anon": None, "shmem": None, "kernel": None}
        for name, path in domains.items():
            if frame[name] is not None:
                made_of = nothing if path is None else composition(node.hierarchy, path)
                frame[name] |= {**made_of, "growth_bytes_per_s": self._growth(name)}
        for uid, pod in pods.items():
            score = looked.scores.get(uid)
            pod["oom_score_adj"] = None if score is None else {"lowest": score[0], "highest": score[1]}
            pod["growth_bytes_per_s"] = self._growth(uid)
        problems = [text for text in (looked.problem, self._read_incidents()) if text]
        frame |= {"kernel_victim": looked.victim, "incidents": self._incidents, "daemon": self._daemon()}
        frame["problems"] = [*frame["problems"], *problems]
        return Sample(frame, "" if node.daemon is None else node.daemon.name)

    def _growth(self, key: str) -> int | None:
        found = self._trends.growth(key)
        return None if found is None else round(found)

    def _follow(self) -> None:
        """Take the daemon's configuration of now. One that does not answer keeps the last one: the frame says so."""
        before = self.node.daemon
        if before is None:
            return
        try:
            now = before.again()
        except (OSError, ValueError, TypeError):
            return
        if now.config == before.config:
            self.node.daemon = now  # of another process, perhaps
            return
        old = self._source
        self._open(now.config, now)  # raises: then the old one stays
        old.close()

    def _daemon(self) -> dict[str, Any] | None:
        """Who answered, and how it works; None: nobody."""
        status = self.node.status
        if status is None:
            return None
        daemon = self.node.daemon
        info = None if daemon is None else daemon.info
        who = {"name": daemon and daemon.name, "pid": info and info.hot_pid, "version": info and info.version}
        return who | {key: status.get(key) for key in _STATUS}

    def _read_incidents(self) -> str:
        """Read the last incidents where the file has changed; gives what is wrong with it."""
        path = Path(self.node.config.state_dir) / FILE_NAME
        try:
            status = path.stat()
        except OSError:
            self._incidents, self._stamp, self._unread = [], None, ""
            return ""
        stamp = status.st_mtime_ns, status.st_size
        if stamp != self._stamp:
            try:
                found = IncidentReader(path, wait_s=_WAIT_S).list(limit=INCIDENTS)
                self._incidents = [{key: one.get(key) for key in _OF_INCIDENT} for one in found]
                self._stamp, self._unread = stamp, ""
            except (MonitorError, OSError) as error:
                self._unread = f"incidents: {error}"
        return self._unread
