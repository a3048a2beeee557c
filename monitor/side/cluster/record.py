"""What the API server is to know of one eviction; kept in the state directory until it does."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from monitor import documents
from monitor.actions.status import EvictedPod, event, event_object, node_event_object, status_patch
from monitor.documents import UnreadableError
from monitor.kernel.durable import replace_file

#: Evictions kept that the API server does not know of: the oldest are dropped. (`STATE/events` has as many.)
KEEP = 1000
_MAX_EVENT_NAME = 253


@dataclass(frozen=True, slots=True)
class Record:
    """``id`` names its file. ``patch`` is the pod's status, ``events`` the v1.Events that are not created yet.

    ``killed`` is when it was signalled, in Unix seconds; ``in_grace``: it got SIGTERM, and its status waits until it
    has ended.
    """

    id: str
    namespace: str
    pod: str
    uid: str
    killed: float
    patch: Mapping[str, Any]
    events: tuple[Mapping[str, Any], ...]
    in_grace: bool = False

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.pod}"


def record_of(eviction: EvictedPod, killed: float) -> Record:
    events = [event_object(eviction)]
    if eviction.resource is not None:
        events.append(node_event_object(eviction))
    return Record(
        id=f"{eviction.pod.uid}.{int(eviction.decided * 1e9):x}".replace("/", "-"),
        namespace=eviction.pod.namespace,
        pod=eviction.pod.name,
        uid=eviction.pod.uid,
        killed=killed,
        patch=status_patch(eviction),
        events=tuple([_accepted(one) for one in events]),
    )


def pod_record(
    namespace: str, pod: str, uid: str, node: str, reason: str, text: str, when: float, warns: bool
) -> Record:
    """An event on a pod that is held."""
    about = {"kind": "Pod", "namespace": namespace, "name": pod, "uid": uid}
    made = event(about, reason, text, node, when, warns=warns)
    name = f"{uid}.{int(when * 1e9):x}.hold".replace("/", "-")
    return Record(name, namespace, pod, uid, when, {}, (_accepted(made),))


def condition_record(node: str, condition: str, reason: str, holds: bool, when: float) -> Record:
    """That a condition of the node changed at ``when``: an event on it."""
    why = f"NodeHas{reason}"
    text = f"Node {node} status is now: {why} (outrace.io/{condition})"
    about = {"kind": "Node", "name": node, "uid": node}
    made = event(about, why, text, node, when, warns=holds, suffix=f".{condition.lower()}")
    return Record(made["metadata"]["name"], "", node, "", when, {}, (_accepted(made),))


def _accepted(made: Mapping[str, Any]) -> dict[str, Any]:
    """As the API server takes it: it sets the creation time itself. The name is the same however often it is sent."""
    metadata = {key: value for key, value in made["metadata"].items() if key != "creationTimestamp"}
    head, _, number = metadata["name"].rpartition(".")
    metadata["name"] = f"{head[: _MAX_EVENT_NAME - len(number) - 1].rstrip('.-')}.{number}"
    return {**made, "metadata": metadata}


class PendingRecords:
    """``STATE/cluster/*.json``. Its methods may block and raise OSError."""

    def __init__(self, state_dir: Path, keep: int = KEEP) -> None:
        self.path = state_dir / "cluster"
        self._keep = keep

    def write(self, record: Record) -> None:
        self.path.mkdir(mode=0o750, parents=True, exist_ok=True)
        replace_file(self._file(record), json.dumps(asdict(record)).encode())
        for path in self._oldest_first()[: -self._keep]:
            path.unlink(missing_ok=True)

    def remove(self, record: Record) -> None:
        self._file(record).unlink(missing_ok=True)

    def load(self, on_problem: Callable[[str], object]) -> list[Record]:
        """Records of the earlier daemon, oldest first. A file that cannot be read stays where it is."""
        found = []
        try:
            paths = self._oldest_first()
        except FileNotFoundError:
            return []
        for path in paths:
            try:
                made = documents.from_json(documents.decoded(documents.read_bytes(path)))
                found.append(Record(**{**made, "events": tuple(made["events"])}))
            except (OSError, UnreadableError, documents.NotAFileError, TypeError, KeyError) as error:
                on_problem(f"{path}: {type(error).__name__}: {error}; remove it")
        return found

    def _file(self, record: Record) -> Path:
        return self.path / f"{record.id}.json"

    def _oldest_first(self) -> list[Path]:
        with os.scandir(self.path) as entries:
            ours = [one for one in entries if one.name.endswith(".json") and not one.name.startswith(".")]
            found = sorted((one.stat(follow_symlinks=False).st_mtime_ns, one.name) for one in ours)
        return [self.path / name for _, name in found]
