"""Verbs of the API server, each one request that is bounded in time and bytes, and raises a `KubeError`.

client = ApiClient(in_cluster(), stop)
pods = client.list(PODS, decode, field_selector=f"spec.nodeName={node}", resource_version="0")
client.patch(PODS, name, {"status": ...}, namespace, subresource="status")
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from monitor.kube.cluster import ClusterConfig
from monitor.kube.decode import MAX_OBJECT, ItemDecoder, Object, WatchEvent, events, parse_object
from monitor.kube.errors import InvalidResponse, ResourceExpired, TimedOut
from monitor.kube.resources import PODS, Resource, with_query
from monitor.kube.transport import Transport

T = TypeVar("T")

#: Seconds for a request, to the last byte of its answer. The API server itself gives up after 60.
TIMEOUT_S = 10.0
#: The same for pods/eviction: while a budget is new or contended the API server itself tries for 10 s (measured: 10.1).
EVICTION_TIMEOUT_S = 30.0
#: The same for a list.
LIST_TIMEOUT_S = 60.0
#: Items of a page of a list, client-go's.
PAGE_SIZE = 500
#: A watch that is silent for so long is begun again; the API server sends a bookmark about once a minute.
SILENCE_S = 90.0
#: How long the server should keep a watch open, as client-go at least.
WATCH_S = 300.0


class PatchType(Enum):
    """How a patch is read; the content type."""

    STRATEGIC = "application/strategic-merge-patch+json"
    MERGE = "application/merge-patch+json"


@dataclass(frozen=True)
class Listed(Generic[T]):
    """What a list had, and the resourceVersion to watch from."""

    items: tuple[T, ...]
    resource_version: str


class ApiClient:
    """One API server. Every method may be called from any thread; ``stop`` ends all of them within 0.5 s."""

    def __init__(
        self,
        config: ClusterConfig,
        stop: threading.Event | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        connect_s: float = 5.0,
    ) -> None:
        self.transport = Transport(config, stop, connect_s)
        self._timeout_s = timeout_s

    def close(self) -> None:
        """Close the connections that are kept."""
        self.transport.close()

    def warm(self) -> Object:
        """Open or prove a connection, and say the server's version. Needs no rights; every 30 s keeps it open."""
        return self._read("GET", "/version", "get the version")

    def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        return self._read("GET", resource.path(namespace, name), *_action_and_rule(resource, "get", namespace, name))

    def list(
        self,
        resource: Resource,
        decode: Callable[[Object], T | None],
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        resource_version: str = "",
        page_size: int = PAGE_SIZE,
        timeout_s: float = LIST_TIMEOUT_S,
    ) -> Listed[T]:
        """All objects; of each only what ``decode`` makes of it is kept, and nothing where that is None.

        ``resource_version`` "0" takes what the API server has in its cache, in one answer, and costs it least; "" asks
        etcd, in pages. A continue token that expires half way begins a list in one answer. ``timeout_s``: per page.
        """
        what, rule = _action_and_rule(resource, "list", namespace, "")
        query: dict[str, object] = {
            "fieldSelector": field_selector,
            "labelSelector": label_selector,
            "resourceVersion": resource_version,
            "limit": None if resource_version == "0" else page_size,
        }
        items: list[T] = []
        while True:
            decoder = ItemDecoder(what)
            target = with_query(resource.path(namespace), query)
            try:
                with self.transport.ask("GET", target, what, rule, timeout_s) as answer:
                    found = map(decode, decoder.items(answer.chunks()))
                    items += [one for one in found if one is not None]
            except ResourceExpired:
                if not query.get("continue"):
                    raise
                items = []
                query |= {"continue": None, "limit": None}
                continue
            metadata = decoder.envelope.get("metadata")
            if not isinstance(metadata, dict) or not isinstance(version := metadata.get("resourceVersion"), str):
                raise InvalidResponse(f"{what}: the list has no metadata.resourceVersion")
            if not (token := metadata.get("continue")):
                return Listed(tuple(items), version)
            # With a continue token the server takes the version of the first page, and refuses another one.
            query |= {"continue": token, "resourceVersion": None}

    @contextlib.contextmanager
    def watch(
        self,
        resource: Resource,
        resource_version: str,
        *,
        namespace: str = "",
        field_selector: str = "",
        watch_s: float = WATCH_S,
        silence_s: float = SILENCE_S,
    ) -> Iterator[Iterator[WatchEvent]]:
        """Changes after ``resource_version``, with bookmarks, on a connection of its own.

        The ``with`` block begins when the server has answered. The events end when the server ends them, and when
        nothing came for ``silence_s``: then watch again from the last one's version. Raises ResourceExpired (list
        again), and every other KubeError.
        """
        what, rule = _action_and_rule(resource, "watch", namespace, "")
        target = with_query(
            resource.path(namespace),
            {
                "watch": True,
                "allowWatchBookmarks": True,
                "fieldSelector": field_selector,
                "resourceVersion": resource_version,
                "timeoutSeconds": max(1, int(watch_s)),
            },
        )
        times = watch_s + silence_s, silence_s, self._timeout_s
        with self.transport.ask("GET", target, what, rule, *times) as answer:
            yield _until_silent(events(answer.chunks(), what))

    def patch(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any] | Sequence[Any],
        namespace: str = "",
        *,
        subresource: str = "",
        kind: PatchType = PatchType.STRATEGIC,
        timeout_s: float | None = None,
        on_sent: Callable[[], object] = lambda: None,
    ) -> Object:
        """The object as it is now. Conflict if ``body`` has a metadata.uid or resourceVersion that it does not have.
        ``on_sent`` is called when the request is on its way.
        """
        return self._read(
            "PATCH",
            _write_target(resource.path(namespace, name, subresource)),
            *_action_and_rule(resource, "patch", namespace, name, subresource),
            body=body,
            content_type=kind.value,
            timeout_s=timeout_s,
            on_sent=on_sent,
        )

    def create(self, resource: Resource, body: Mapping[str, Any], namespace: str = "") -> Object:
        """Raises AlreadyExists. Give it a name rather than generateName: it may be done though no answer came."""
        target = _write_target(resource.path(namespace))
        return self._read("POST", target, *_action_and_rule(resource, "create", namespace, ""), body=body)

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        grace_period_s: int | None = None,
    ) -> Object:
        """Conflict where uid or resourceVersion is another one: the object was changed or made anew."""
        options = _delete_options(uid, resource_version, grace_period_s)
        action_and_rule = _action_and_rule(resource, "delete", namespace, name)
        return self._read("DELETE", resource.path(namespace, name), *action_and_rule, body=options)

    def evict(self, name: str, namespace: str, *, uid: str = "", grace_period_s: int | None = None) -> Object:
        """pods/eviction: TooManyRequests with ``budget_blocks`` where a PodDisruptionBudget does not allow it."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": _delete_options(uid, "", grace_period_s),
        }
        target = PODS.path(namespace, name, "eviction")
        action_and_rule = _action_and_rule(PODS, "create", namespace, name, "eviction")
        return self._read("POST", target, *action_and_rule, body=body, timeout_s=EVICTION_TIMEOUT_S)

    def _read(
        self,
        method: str,
        target: str,
        what: str,
        rule: str = "",
        *,
        body: object = None,
        content_type: str = "application/json",
        timeout_s: float | None = None,
        on_sent: Callable[[], object] = lambda: None,
    ) -> Object:
        encoded = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        sent: dict[str, Any] = {"body": encoded, "content_type": content_type, "on_sent": on_sent}
        with self.transport.ask(method, target, what, rule, timeout_s or self._timeout_s, **sent) as answer:
            return parse_object(answer.all(MAX_OBJECT), what)


def _write_target(path: str) -> str:
    """With the owner of what is written, in managedFields."""
    return with_query(path, {"fieldManager": "outrace"})


def _until_silent(found: Iterator[WatchEvent]) -> Iterator[WatchEvent]:
    try:
        yield from found
    except TimedOut:
        return


def _action_and_rule(
    resource: Resource, verb: str, namespace: str, name: str, subresource: str = ""
) -> tuple[str, str]:
    """What is done, for errors, and the RBAC rule that it needs."""
    plural = f"{resource.plural}/{subresource}" if subresource else resource.plural
    of = "/".join(part for part in (namespace, name) if part)
    return f"{verb} {plural}{f' {of}' if of else ''}", resource.rbac_rule(verb, subresource)


def _delete_options(uid: str, resource_version: str, grace_period_s: int | None) -> dict[str, object]:
    options: dict[str, object] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    preconditions = {"uid": uid, "resourceVersion": resource_version}
    if given := {key: value for key, value in preconditions.items() if value}:
        options["preconditions"] = given
    if grace_period_s is not None:
        options["gracePeriodSeconds"] = grace_period_s
    return options
