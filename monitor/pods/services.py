"""Pods of a machine without Kubernetes (``--pods services``): services, scopes, containers, plain cgroups.

Read where systemd and the runtimes put it: memory files and extended attributes of the cgroup, oom_score_adj of the
processes, labels of a container. What that means is decided in `monitor.policy.services`.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from monitor.errors import MonitorError
from monitor.kernel import cgroup_procs, cgroupfs
from monitor.kernel.wire import printable
from monitor.pods import claims, units
from monitor.pods.cgroup_tree import children, is_kubepods, kubepods_of
from monitor.pods.inotify import CHILDREN, IN_CREATE, IN_DELETE_SELF, IN_MODIFY, IN_ONLYDIR, Event
from monitor.pods.model import RESCAN_S, Change, FoundPod, PodSource, Scan, Within, first
from monitor.pods.runtimes import Runtimes
from monitor.pods.units import Place
from monitor.policy.pods import stable_uid
from monitor.policy.services import LABELS, Facts, service_pod

#: Files of a cgroup that change what is known of a unit. (At a limit memory.events changes by the hundred.)
_FILES = {"cgroup.procs", "cgroup.events", "memory.min", "memory.low", "memory.max"}
_FILES |= {"memory.limit_in_bytes", "memory.soft_limit_in_bytes"}
_UNIT_FILES = IN_MODIFY | IN_DELETE_SELF | IN_ONLYDIR
#: Services, scopes and slices of one user: users may neither fill the tables of watches nor make scans longer.
_MOST_OF_USER = 200
#: Where containerd has what runs: NAMESPACE/CONTAINER.
CONTAINERS = "/run/containerd/io.containerd.runtime.v2.task"
#: How long a unit may take to be started.
_STARTING_S = 10.0
#: The guide of the OOM killer gives a victim this value (`monitor.side.process_watch`): its own is the one before.
_MARKED_SCORE = 1000


@dataclass(frozen=True, slots=True)
class _Look:
    """What the processes of a cgroup showed at ``looked_s`` (monotonic seconds)."""

    looked_s: float
    first_s: float
    score: int | None = None
    starting: bool = False
    vital: str = ""
    session: str = ""
    inside: tuple[str, ...] = ()  # ids of its containers


class ServiceSource(PodSource):
    """Services and containers of this machine, by the table `services:` (``rules``) and what ``runtimes`` know."""

    def __init__(
        self,
        mem_total: int,
        within: Within,
        rules: Mapping[str, Mapping[str, Any]] | None = None,
        runtimes: Runtimes | None = None,
    ) -> None:
        super().__init__(within if within.spared else within._replace(spared=(os.getpid(),)))
        self._mem_total = mem_total
        self._rules = rules or {}
        self._runtimes = runtimes or Runtimes()
        self._looks: dict[int, _Look] = {}  # by cgroup id
        self._splitting: set[Path] = set()  # units that a container may come to be in
        self._doubted = ""

    def doubt(self, uid: str) -> bool:
        self._doubted = uid
        return True

    def poll(self) -> Change:
        if (found := self.pods.get(self._doubted)) is not None:
            self._doubted, self._next_scan, key = "", 0.0, found.cgroup_ids[0]
            if (look := self._looks.get(key)) is not None:
                self._looks[key] = replace(look, looked_s=-RESCAN_S)
        return super().poll()

    def _concerns(self, event: Event) -> bool:
        if event.mask & IN_MODIFY:
            return event.name in _FILES
        if not (event.mask & IN_CREATE and event.directory in self._splitting):
            return True
        return units.PAYLOAD.fullmatch(event.name) is not None or units.unsplit((event.name,)) is not None

    def _scan(self) -> Scan:
        scan = Scan()
        self.kubepods = kubepods_of(self.hierarchy, self.node, self._cgroup_root)
        ours = self._spared_cgroups()
        places = list(self._places(scan))
        self._splitting = {path for path, place in places if _may_split(path, place)}
        inside = {path: self._containers(path, place) for path, place in places}
        wanted = {place.ident: place.namespace for _, place in places if place.ident}
        wanted |= {ident: units.PODMAN for containers in inside.values() for ident in containers}
        self._runtimes.refresh(wanted)
        scan.problems.extend(self._runtimes.problems)
        scan.unsettled = self._runtimes.unsettled
        usage = "memory.usage_in_bytes" if self.hierarchy.version == 1 else "memory.current"
        looks: dict[int, _Look] = {}
        names, unaccounted = set[tuple[str, str]](), list[str]()
        for path, place in places:
            try:
                scan.watch[path] = _UNIT_FILES | (IN_CREATE if path in self._splitting else 0)
                key = cgroupfs.cgroup_id(path)
                looks[key] = look = self._look(path, place, inside[path], key)
                if look.score is None:
                    scan.unsettled |= look.looked_s - look.first_s < _STARTING_S
                    continue  # without a process there is nothing to evict
                if not os.path.exists(path / usage):  # one that is being removed has no processes either
                    unaccounted.append(f"{place.namespace}/{place.name}")
                    continue
                scan.unsettled |= look.starting
                facts = _named_apart(self._facts(path, place, inside[path], look, ours.get(path, "")), names)
                scan.pods[facts.uid] = FoundPod(service_pod(facts, self._rules), path, {facts.name: path}, (key, key))
            except (cgroupfs.CgroupGone, FileNotFoundError):
                scan.unsettled = True
            except (MonitorError, OSError) as error:
                scan.problems.append(str(error))
        if unaccounted:
            scan.problems.append(
                f"no memory accounting, so not watched: {len(unaccounted)} ({first(unaccounted)}): "
                "set MemoryAccounting=yes, or DefaultMemoryAccounting=yes in system.conf"
            )
        self._looks = looks
        return scan

    # ---- where they are

    def _places(self, scan: Scan) -> Iterator[tuple[Path, Place]]:
        """Every cgroup that is a pod, in the order of their paths: the machine's units before a user's of that name."""
        of_user = Counter[int]()
        pending: list[tuple[Path, tuple[str, ...], int | None]] = [(self.node, (), None)]
        while pending:
            parent, parts, user = pending.pop(0)
            scan.watch[parent] = CHILDREN
            there = children(parent, None if user is None else _MOST_OF_USER - of_user[user] + 1)
            if user is not None:
                of_user[user] += len(there)
                there = there[: len(there) - max(0, of_user[user] - _MOST_OF_USER)]
            for path in there:
                below = (*parts, path.name)
                found = units.classify(below)
                if isinstance(found, Place):
                    yield from self._apart(scan, path, found) or [(path, found)]
                elif found == units.DESCEND and len(below) < units.MAX_DEPTH:
                    if (place := units.whole(below, user)) is not None and cgroup_procs.pids_in(os.fspath(path)):
                        yield path, place
                        continue
                    pending.append((path, below, units.managed_by(below) if user is None else user))
                elif found == units.SKIP and is_kubepods(path.name):
                    scan.problems.append(
                        f"{path} holds the pods of a kubelet, which are not watched: start outrace again, --pods auto"
                    )
        for user, number in of_user.items():
            if number > _MOST_OF_USER:
                scan.problems.append(
                    f"user {user} has more than {_MOST_OF_USER} services, scopes and slices: the others are not watched"
                )

    def _apart(self, scan: Scan, path: Path, place: Place) -> list[tuple[Path, Place]]:
        """Pods of their own: containers in their runtime's unit, or in containerd's directory without a process."""
        if place.user is None and place.kind == units.PLAIN and _is_roots(path):
            of_containerd = len(place.parts) == 1 and os.path.isdir(f"{CONTAINERS}/{place.name}")
            if not of_containerd or cgroup_procs.pids_in(os.fspath(path)):
                return []
            scan.watch[path] = CHILDREN
            found = children(path)
            return [(one, Place(units.CONTAINER, "containerd", one.name, (*place.parts, one.name))) for one in found]
        if place.user is not None or not (claims.lost_with(place.name) and _may_split(path, place)):
            return []
        scan.watch[path] = CHILDREN
        return [(one, made) for one in children(path) if (made := units.unsplit((*place.parts, one.name)))]

    # ---- what is known of one

    def _containers(self, path: Path, place: Place) -> dict[str, Path]:
        """The directories of the containers that a pod of podman or a unit has in it, by id."""
        if place.kind != units.PODMAN_POD and path not in self._splitting:
            return {}
        pattern = units.IN_POD if place.kind == units.PODMAN_POD else units.PAYLOAD
        return {found[1]: below for below in children(path) if (found := pattern.fullmatch(below.name))}

    def _look(self, path: Path, place: Place, inside: Mapping[str, Path], key: int) -> _Look:
        """Its processes; again after a minute, and at once while it is being started."""
        now, containers = time.monotonic(), tuple(inside)
        old = self._looks.get(key)
        if old is not None and old.inside != containers:
            old = None
        if old is not None and old.score is not None and not old.starting and now - old.looked_s < RESCAN_S:
            return old
        first = now if old is None else old.first_s
        # Without the conmon that is beside a container: it gives itself -1000, and its container what was there before.
        score, starting = claims.lowest_score(inside.values() or (path,))
        if score is None and inside:
            score, starting = claims.lowest_score((path,))[0], True
        if score == _MARKED_SCORE and old is not None and old.score is not None:
            score = old.score
        # Below a user's manager no process has a runtime's score, and any may call itself runc.
        starting = starting and place.user is None and now - first < _STARTING_S
        session = claims.by_session(path) if place.user is not None else ""
        vital = claims.holds(path)
        return _Look(now, first, score, starting, f"it holds {vital}" if vital else "", session, containers)

    def _facts(self, path: Path, place: Place, inside: Mapping[str, Path], look: _Look, ours: str) -> Facts:
        name, aliases = printable(os.fsencode(place.name)), [place.name, units.unescaped(place.name).replace("/", "-")]
        labels: Mapping[str, str] | None = {}
        if place.ident:
            known = self._runtimes.known(place.ident)
            labels = None if known is None else known.labels
            if known is not None and known.name:
                name = printable(known.name.encode(errors="surrogatepass"))
        elif inside:
            # The unit is what systemd starts again, and what goes as a whole: it keeps its name, and has their labels.
            found = [known for ident in inside if (known := self._runtimes.known(ident)) is not None]
            alike = len({tuple(map(known.labels.get, LABELS)) for known in found}) == 1
            labels = found[0].labels if alike and len(found) == len(inside) else None  # what differs forbids it
            aliases += [f"{units.PODMAN}/{known.name}" for known in found]
        request, limit = self._kept(path), cgroupfs.limit(path)
        if inside:
            request, limit = self._sums(place, inside, request, limit)
        vital = f"it holds {ours}, which would be killed with it" if ours else "" if look.starting else look.vital
        return Facts(
            uid=stable_uid(place.namespace, "/".join(place.parts)),  # bytes: a name is for people only
            namespace=printable(os.fsencode(place.namespace)),
            name=name,
            request=min(request, self._mem_total),
            limit=limit,
            score=None if look.starting else look.score,
            preference=_preference(path),
            labels=labels,
            aliases=tuple(dict.fromkeys(alias for alias in aliases if alias != name)),
            user=place.user is not None,
            protected=claims.by_place(self.node, path, place) or look.session,
            vital=vital,
        )

    def _sums(
        self, place: Place, inside: Mapping[str, Path], request: int, limit: int | None
    ) -> tuple[int, int | None]:
        """Request and limit of a pod: its own, or its containers' together (`podman kube play` writes only those)."""
        known = self._runtimes.known(place.ident)
        infra = known.infra if known is not None else ""
        members = [member for ident, member in inside.items() if ident != infra]
        limits = [cgroupfs.limit(member) for member in members]
        if limit is None and limits and None not in limits:
            limit = sum(size for size in limits if size is not None)
        return max(request, sum(self._kept(member) for member in members)), limit

    def _kept(self, path: Path) -> int:
        """Bytes that root keeps for a cgroup: a user's figure counts up to what root keeps above it."""
        least: int | None = None
        for cgroup in (path, *path.parents):
            if cgroup == self.node or not cgroup.is_relative_to(self.node):
                break
            kept, owner = _protection(cgroup, self.hierarchy.version)
            least = kept if least is None else min(least, kept)
            if owner in (0, os.geteuid()):
                return least
        return 0


def _may_split(path: Path, place: Place) -> bool:
    """Whether podman may have split a unit's cgroup into a container's and conmon's: root's podman. In a cgroup of its
    own a user could make a directory of that name, and be kept for labels that root's podman never knows.
    """
    return place.kind == units.UNIT and place.name.endswith(".service") and _is_roots(path)


def _is_roots(path: Path) -> bool:
    with suppress(OSError):
        return os.stat(path).st_uid in (0, os.geteuid())
    return False


def _protection(path: Path, version: int) -> tuple[int, int]:
    """Bytes that the files of one cgroup keep for it, and the user id of their owner."""
    names = ("memory.min", "memory.low") if version == 2 else ("memory.soft_limit_in_bytes",)
    everything = cgroupfs.MAX_LIMIT if version == 2 else 0  # v1's soft limit is at "max" until it is written
    found = []
    for name in names:
        if (path / name).exists():
            kept = cgroupfs.amount(path, name)
            found.append((everything if kept is None else kept, os.stat(path / name).st_uid))
    return max((size for size, _ in found), default=0), max((owner for _, owner in found), default=0)


def _preference(path: Path) -> str:
    """``omit``, ``avoid`` or "": ManagedOOMPreference= of a cgroup of root's. A user's own is none for the machine."""
    for word, space in product(("omit", "avoid"), ("user", "trusted")) if _is_roots(path) else ():
        with suppress(OSError):
            if os.getxattr(path, f"{space}.oomd_{word}") in (b"1", b"yes", b"true", b"on"):
                return word
    return ""


def _named_apart(facts: Facts, names: set[tuple[str, str]]) -> Facts:
    """Two may be called the same: a user's unit and a session, say. Metrics have one series a name."""
    name, number = facts.name, 1
    while (facts.namespace, name) in names:
        number += 1
        name = f"{facts.name}~{number}"
    names.add((facts.namespace, name))
    return facts if name == facts.name else replace(facts, name=name, aliases=(facts.name, *facts.aliases))
