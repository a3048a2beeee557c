"""A Lease of coordination.k8s.io as a lock: client-go's LeaseLock and LeaderElectionRecord."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from monitor.kube.client import ApiClient
from monitor.kube.decode import Object


@dataclass(frozen=True)
class Record:
    """The spec of a Lease. Times are text: they are compared and shown, never calculated with."""

    holder: str = ""
    duration_s: int = 0
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0


class LeaseLock:
    """One Lease, which is made where there is none. `Conflict` where another one changed it first."""

    def __init__(self, client: ApiClient, namespace: str, name: str) -> None:
        self._client = client
        self.namespace = namespace
        self.name = name
        self._lease: dict[str, Any] = {}  # as the server gave it last

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def known(self) -> bool:
        return bool(self._lease)

    def get(self) -> Record:
        """Raises NotFound."""
        self._lease = self._client.get_lease(self.name, self.namespace)
        return record_of(self._lease)

    def create(self, record: Record) -> None:
        """Raises AlreadyExists."""
        metadata = {"name": self.name, "namespace": self.namespace}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec_of(record)}
        self._lease = self._client.create_lease(body, self.namespace)

    def update(self, record: Record) -> None:
        """With the resourceVersion that was seen last: Conflict."""
        self._lease = self._client.update_lease({**self._lease, "spec": spec_of(record)}, self.namespace)


def spec_of(record: Record) -> dict[str, Any]:
    return {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": record.duration_s,
        "acquireTime": record.acquired,
        "renewTime": record.renewed,
        "leaseTransitions": record.transitions,
    }


def record_of(lease: Object) -> Record:
    """Whatever is not there, or of another type, is as if it were empty: then the lease is nobody's."""
    spec = lease.get("spec")
    spec = spec if isinstance(spec, dict) else {}

    def text(key: str) -> str:
        value = spec.get(key)
        return value if isinstance(value, str) else ""

    def number(key: str) -> int:
        value = spec.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    return Record(
        text("holderIdentity"),
        number("leaseDurationSeconds"),
        text("acquireTime"),
        text("renewTime"),
        number("leaseTransitions"),
    )


def micro_time(moment: float) -> str:
    """Unix seconds as a MicroTime."""
    return datetime.datetime.fromtimestamp(moment, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
