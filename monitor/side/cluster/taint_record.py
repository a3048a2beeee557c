"""The taints that this instance set, on disk: `outrace unload` and every next start take them away, whatever its pods
come from. A daemon that was killed cannot.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from monitor import documents
from monitor.documents import UnreadableError
from monitor.errors import ConfigError, MonitorError
from monitor.kernel.durable import replace_file
from monitor.kube.backoff import BackOff
from monitor.kube.client import ApiClient
from monitor.kube.errors import ApiError, Conflict, TooManyRequests
from monitor.pods.access import Access
from monitor.pods.installations import NodeKubelet
from monitor.side.cluster.node import NodeReport
from monitor.side.export.log import Log

#: One request of a removal, and the connection for it: an operator waits for `outrace unload`.
_REQUEST_S = 3.0
_CAP_S = 60.0
_LEFT = "an earlier daemon left taints on its node, and they cannot be removed from here"
_TRYING = "an earlier daemon left taints on its node; trying to remove them"


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
    def by_hand(self) -> str:
        return f"kubectl taint node {self.node} {' '.join(f'{key}-' for key in self.keys)}"


class TaintRecords:
    """``STATE/taints/NODE.json``. Its methods may block, and all but `load` raise OSError."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "taints"

    def write(self, record: TaintRecord) -> None:
        """Durable: the taint outlives a crash of the machine."""
        self.path.mkdir(mode=0o750, parents=True, exist_ok=True)
        replace_file(self._file(record.node), json.dumps(asdict(record)).encode())

    def remove(self, node: str) -> None:
        self._file(node).unlink(missing_ok=True)

    def load(self, on_problem: Callable[[str], object]) -> list[TaintRecord]:
        """What is written down. A file that cannot be read is left where it is."""
        found = []
        for path in sorted(self.path.glob("[!.]*.json")):
            try:
                made = documents.from_json(documents.decoded(documents.read_bytes(path)))
                keys, given = tuple(map(str, made["keys"])), made.get("given") is True
                found.append(TaintRecord(str(made["node"]), keys, str(made["kubeconfig"]), given))
            except (OSError, UnreadableError, documents.NotAFileError, TypeError, KeyError) as error:
                on_problem(f"{path}: {type(error).__name__}: {error}; look at the node's taints, and remove it")
        return found

    def _file(self, node: str) -> Path:
        return self.path / f"{node}.json"


def remove_left(record: TaintRecord, records: TaintRecords, log: Log) -> None:
    """Remove the taints from the node, then the record. Raises MonitorError, and OSError of the file."""
    path = Path(record.kubeconfig) if record.kubeconfig and not record.given else None
    access = Access(kubeconfig=record.kubeconfig if record.given else "", kubelet=NodeKubelet(kubeconfig=path))
    server, _ = access.api_server()
    client = ApiClient(server, timeout_s=_REQUEST_S, connect_s=_REQUEST_S)
    try:
        NodeReport(client, record.node, tuple, log).remove_taints(client)
    finally:
        client.close()
    records.remove(record.node)


def start_removal(state_dir: Path, log: Log, but: str = "") -> threading.Thread | None:
    """Remove what an instance before left on nodes other than ``but``, in a thread, until the API server answers. None
    where nothing is left.
    """
    records = TaintRecords(state_dir)
    found = records.load(lambda problem: log.error("taints of an earlier daemon may be left", problem=problem))
    left = [one for one in found if one.node != but]
    if not left:
        return None
    thread = threading.Thread(target=_remove_all, args=(left, records, log), name="taints", daemon=True)
    thread.start()
    return thread


def _remove_all(left: list[TaintRecord], records: TaintRecords, log: Log) -> None:
    back_off, logged, pause = BackOff(cap_s=_CAP_S), False, threading.Event()
    while left:
        record, wait_s = left[0], None
        try:
            remove_left(record, records, log)
        except (MonitorError, OSError) as error:
            wait_s = None if _is_final(error) else back_off.next_s()
            if not logged:
                log.warning(
                    _LEFT if wait_s is None else _TRYING,
                    node=record.node,
                    keys=record.keys,
                    problem=str(error),
                    remedy=record.by_hand,
                )
            logged = wait_s is not None
        if wait_s is None:
            del left[0]
        else:
            pause.wait(wait_s)


def _is_final(error: MonitorError | OSError) -> bool:
    """Whether it will be the same the next time: no credentials, or not the right."""
    if isinstance(error, ApiError):
        return 400 <= error.code < 500 and not isinstance(error, Conflict | TooManyRequests)
    return isinstance(error, ConfigError)
