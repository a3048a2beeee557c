"""What the state directory keeps for the API server: each eviction that it does not know yet."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from monitor import documents
from monitor.actions.status import EvictedPod, event, events_of, status_patch
from monitor.documents import UnreadableError
from monitor.kernel.durable import JsonFolder

#: Evictions kept that the API server does not know of: the oldest are dropped.
KEEP = 1000


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
    return Record(
        id=f"{eviction.pod.uid}.{int(eviction.decided * 1e9):x}".replace("/", "-"),
        namespace=eviction.pod.namespace,
        pod=eviction.pod.name,
        uid=eviction.pod.uid,
        killed=killed,
        patch=status_patch(eviction),
        events=tuple(events_of(eviction)),
    )


def event_record(about: Mapping[str, str], reason: str, text: str, node: str, when: float, *, warns: bool) -> Record:
    """An event alone, on a pod or the node."""
    made = event(about, reason, text, node, when, warns=warns, suffix=f".{reason.lower()}")
    name = f"{about['uid']}.{int(when * 1e9):x}.{reason.lower()}".replace("/", "-")
    return Record(name, about.get("namespace", ""), about["name"], about["uid"], when, {}, (made,))


class Records:
    """A file for each record, ``STATE_DIR/cluster/ID.json``, of which the newest `KEEP` stay. Its methods may block,
    and all but `load` raise OSError.
    """

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "cluster"
        self._folder = JsonFolder(self.path, 0o600, KEEP)

    def write(self, record: Record) -> None:
        self._folder.replace(f"{record.id}.json", json.dumps(asdict(record)).encode())

    def remove(self, record_id: str) -> None:
        self._folder.remove(f"{record_id}.json")

    def load(self, on_problem: Callable[[str], object]) -> list[Record]:
        """Those of the earlier daemon, oldest first. A file that cannot be read stays where it is."""
        names, found = dict[str, int](), list[Record]()
        try:
            names = self._folder.listed()
        except (FileNotFoundError, PermissionError):
            pass  # none was written, or not for this user
        except OSError as error:
            on_problem(f"{self.path}: {error.strerror}")
        for path in (self.path / name for name in names):
            try:
                made = documents.from_json(documents.decoded(documents.read_bytes(path)))
                fields: Any = {key: tuple(one) if isinstance(one, list) else one for key, one in made.items()}
                found.append(Record(**fields))
            except (OSError, UnreadableError, TypeError, AttributeError) as error:
                on_problem(f"{path}: {type(error).__name__}: {error}; remove it")
        return found
