"""What the state directory keeps for the API server: each eviction that it does not know yet, and the taints that this
instance set.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

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


@dataclass(frozen=True, slots=True)
class TaintRecord:
    """``kubeconfig``: of the API server that has the node; "" is the service account of the pod. ``given``: by
    ``--kubeconfig``, so its exec plugin may run.
    """

    node: str
    keys: tuple[str, ...]
    kubeconfig: str
    given: bool = False

    @property
    def id(self) -> str:
        return self.node

    @property
    def by_hand(self) -> str:
        return f"kubectl taint node {self.node} {' '.join(f'{key}-' for key in self.keys)}"


R = TypeVar("R", Record, TaintRecord)


class JsonFiles(Generic[R]):
    """A file for each record, ``ID.json``, of which the newest `KEEP` stay. Its methods may block, and all but `load`
    raise OSError.
    """

    def __init__(self, kind: type[R], path: Path, remedy: str) -> None:
        self.path, self._folder = path, JsonFolder(path, 0o600, KEEP)
        self._kind: type[R] = kind
        self._remedy = remedy

    def write(self, record: R) -> None:
        """Durable: a taint outlives a crash of the machine."""
        self._folder.replace(f"{record.id}.json", json.dumps(asdict(record)).encode())

    def remove(self, record_id: str) -> None:
        self._folder.remove(f"{record_id}.json")

    def load(self, on_problem: Callable[[str], object]) -> list[R]:
        """Records of the earlier daemon, oldest first. A file that cannot be read stays where it is."""
        names, found = dict[str, int](), list[R]()
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
                found.append(self._kind(**fields))
            except (OSError, UnreadableError, TypeError, AttributeError) as error:
                on_problem(f"{path}: {type(error).__name__}: {error}; {self._remedy}")
        return found


def taint_records(state_dir: Path) -> JsonFiles[TaintRecord]:
    """By node."""
    return JsonFiles(TaintRecord, state_dir / "taints", "look at the node's taints, and remove it")


def pending_records(state_dir: Path) -> JsonFiles[Record]:
    return JsonFiles(Record, state_dir / "cluster", "remove it")
