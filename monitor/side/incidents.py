"""The stored incidents: every pressure episode with its verdict, each a file `STATE_DIR/incidents/ID.json`.

A file is there whole or not at all, so readers and the writer need no lock. Number and bytes are bounded.
"""

from __future__ import annotations

import datetime
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from monitor import documents
from monitor.errors import MonitorError
from monitor.kernel.durable import JsonFolder, sync_directory
from monitor.owner import ChangeableError, changed_by, check_alone, mend, others

FOLDER = "incidents"
MAX_BYTES = 64 << 20
KEEP = 2000
#: Bytes of an id in a file's name, which may have 255: a user chooses the name of a unit, and so the end of an id.
_NAME_BYTES = 200
#: Ids named in an error.
_NAMED = 3

Incident = dict[str, Any]
Incidents = list[Incident]  # names for it: inside the class, `list` is the method
Ids = list[str]


class TooLargeError(MonitorError):
    """An incident that would take a sixteenth of the store or more."""


class UnknownIncident(MonitorError):
    """No incident, or more than one, has this id."""


def unix_time(text: str) -> float:
    """Unix seconds of a time in ISO 8601. Raises ValueError, TypeError."""
    return datetime.datetime.fromisoformat(text).timestamp()


def _name(key: str) -> str:
    return key.encode(errors="replace")[:_NAME_BYTES].decode(errors="ignore")


def _pods(incident: Mapping[str, Any]) -> list[str]:
    """Every pod that has a part in it: evicted, refused to be, held, killed, stalled, or that led to it."""
    parts = [*incident.get("evicted", ()), *incident.get("oom_victims", ()), incident.get("invoker") or {}]
    names = [part["pod"] for part in parts if part.get("pod")] + [*incident.get("refused", ())]
    names += [one["pod"] for one in incident.get("holds", ())]
    stall = incident.get("stall") or {}
    names += [stall[key] for key in ("pod", "cause") if stall.get(key)]
    return list(dict.fromkeys(map(str, names)))


@dataclass(eq=False)
class IncidentReader:
    """Answers questions about the directory ``path``, which need not exist. All of them may block.

    They raise OSError, and MonitorError where others can change the directory that root would read. Files that hold no
    incident, or that another user can change, are left out of the answer and counted in ``unreadable``.
    """

    path: Path
    _: KW_ONLY
    unreadable: int = 0

    def list(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        verdict: str | None = None,
        flag: str | None = None,
        pod: str | None = None,
        limit: int | None = None,
    ) -> Incidents:
        """Incidents without their steps, newest first. ``since`` and ``until`` are Unix seconds of their start.

        ``pod`` is NAMESPACE/NAME, or the name alone; a pod has a part in an incident when it was evicted, killed, or
        at whose allocation the kernel killed.
        """
        found: Incidents = []
        for one in self.all():
            start = unix_time(one["start"])
            is_wanted = (
                (since is None or start >= since)
                and (until is None or start <= until)
                and verdict in (None, one["verdict"])
                and (flag is None or flag in one["flags"])
                and (pod is None or any(pod in (name, name.rpartition("/")[2]) for name in _pods(one)))
            )
            if is_wanted:
                one.pop("steps", None)
                found.append(one)
        found.sort(key=lambda one: unix_time(one["start"]))  # stable: of one moment, as they were written
        return found[::-1][:limit]

    def get(self, key: str) -> Incident:
        """The incident whose id is, or uniquely begins with, ``key``, with its steps; ``latest`` is the newest.

        Raises UnknownIncident.
        """
        ids = self._names()[::-1]
        if not ids:
            raise UnknownIncident(f"no incidents stored in {self.path.parent} yet")
        if key == "latest" and (newest := self.list(limit=1)):
            key = newest[0]["id"]
        matches = [_name(key)] if _name(key) in ids else [known for known in ids if key and known.startswith(key)]
        if len(matches) > 1:
            some = ", ".join(matches[:_NAMED]) + (", ..." if len(matches) > _NAMED else "")
            raise UnknownIncident(f"{len(matches)} incidents begin with {key!r}", f"say more of it: {some}")
        if not matches:
            raise UnknownIncident(f"no incident has the id {key!r}", f"the newest is {ids[0]}")
        found = self._read(matches[0])
        if found is None:
            raise MonitorError(f"incident {matches[0]!r} in {self.path} is damaged, or has just been deleted")
        return found

    def all(self) -> Iterator[Incident]:
        """Every incident with its steps, as they were written; one that is deleted meanwhile may be missing."""
        return (found for name in self._names() if (found := self._read(name)) is not None)

    def _names(self) -> Ids:
        """Of the files, the oldest first."""
        if os.geteuid() == 0 and self.path.exists() and (problem := changed_by(self.path)):
            raise MonitorError(problem, f"{mend(problem)}, or read it as another user")
        try:
            return [name.removesuffix(".json") for name in JsonFolder(self.path).listed()]
        except FileNotFoundError:
            return []

    def _read(self, name: str) -> Incident | None:
        """None for one that has been deleted or is damaged."""
        path = self.path / f"{name}.json"

        def check(fd: int) -> None:
            if os.geteuid() == 0 and (problem := others(path, os.fstat(fd))):  # root has no other user's file parsed
                raise PermissionError(problem)

        try:
            incident: Incident = json.loads(documents.read_bytes(path, opened=check))
            for key in ("start", "end"):
                unix_time(incident[key])
            if not all(isinstance(incident[key], str) for key in ("id", "verdict", "domain")):
                raise TypeError("its id, verdict or domain is no text")
            _pods(incident), [*incident["flags"]]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            self.unreadable += 1
            return None
        return incident


@dataclass(eq=False)
class IncidentStore(IncidentReader):
    """Writes incidents to ``path``, from one thread. Every method may block and raise OSError.

    ``stored``: how many there are, None before the first write; readable from any thread without waiting.
    """

    max_bytes: int = MAX_BYTES
    keep: int = KEEP
    stored: int | None = None

    def __post_init__(self) -> None:
        self._of: dict[str, str] = {}  # name -> the pods of it, for those that were compared
        self._newest_ns = 0  # modification time of the newest file; 0: not known yet

    def add(self, incident: Mapping[str, Any]) -> None:
        """Store an incident, or a later version of one; where they do not fit, others are deleted (`_make_room`).

        On disk when it returns. Raises TooLargeError, MonitorError for a directory that others can change, and OSError
        for what may pass (no space, read-only); then nothing has changed.
        """
        name, data = _name(incident["id"]), json.dumps(incident, separators=(",", ":")).encode()
        if len(data) > self.max_bytes // 16:
            raise TooLargeError(f"incident {incident['id']!r} is too large to be stored ({len(data)} bytes)")
        try:
            check_alone(self.path)
        except ChangeableError as error:
            raise MonitorError(str(error)) from None
        folder = JsonFolder(self.path)
        folder.replace(f"{name}.json", data)
        self._settle(self.path / f"{name}.json")
        self._of[name] = ",".join(_pods(incident))
        self._make_room(folder, name)

    def _settle(self, path: Path) -> None:
        """Make a file the newest, also where the clock was set back, and its name durable."""
        if not self._newest_ns:
            with os.scandir(self.path) as entries:
                for one in entries:
                    if one.name.startswith(".") and one.name.endswith(".tmp"):  # of a writer that was killed
                        os.unlink(one)
                    else:
                        self._newest_ns = max(self._newest_ns, one.stat(follow_symlinks=False).st_mtime_ns)
        self._newest_ns = max(time.time_ns(), self._newest_ns + 1)
        os.utime(path, ns=(self._newest_ns, self._newest_ns))
        sync_directory(self.path)

    def _make_room(self, folder: JsonFolder, but: str) -> None:
        """Delete until the rest fits: of the namespace with most incidents, there of the pods with most, the oldest. A
        pod that kills its own children, and a tenant that makes pod after pod, leave others theirs.
        """
        sizes = {name.removesuffix(".json"): size for name, size in folder.listed().items()}
        while len(sizes) > self.keep or sum(sizes.values()) > self.max_bytes:
            pods = {name: self._pods_of(name) for name in sizes if name != but}
            if not pods:
                break
            spaces, whole = Counter(one.partition("/")[0] for one in pods.values()), Counter(pods.values())
            gone = max(pods, key=lambda name: (spaces[pods[name].partition("/")[0]], whole[pods[name]]))
            with suppress(OSError):  # one that cannot be removed counts no more
                folder.remove(f"{gone}.json")
            del sizes[gone]
        self._of = {name: pods for name, pods in self._of.items() if name in sizes}
        self.stored = len(sizes)

    def _pods_of(self, name: str) -> str:
        if name not in self._of:
            self._of[name] = ",".join(_pods(self._read(name) or {}))
        return self._of[name]
