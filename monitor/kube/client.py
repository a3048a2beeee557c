"""Verbs of the API server, each one request that is bounded in time and bytes, and raises a `KubeError`.

client = ApiClient(in_cluster(), stop)
pods = client.list(PODS, decode, field_selector=f"spec.nodeName={node}", resource_version="0")
client.patch(PODS, name, {"status": ...}, namespace, subresource="status")
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from monitor.kube.decode import MAX_OBJECT, ItemDecoder, Object, WatchEvent, events, parse_object
from monitor.kube.errors import InvalidResponse, ResourceExpired
from monitor.kube.transport import Transport

T = TypeVar("T")


@dataclass(frozen=True)
class Resource:
    """A kind of object: ``group`` is "" for the core; ``plural`` as in the path."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", subresource: str = "", **query: Any) -> str:
        """Without ``namespace``: of all namespaces. Of ``query`` what is empty is left out."""
        parts = ["api", self.version] if not self.group else ["apis", self.group, self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        given = urlencode({key: value for key, value in query.items() if value})
        return "/" + "/".join(quote(part, safe="") for part in parts) + (f"?{given}" if given else "")

    def about(self, verb: str, namespace: str = "", name: str = "", subresource: str = "") -> tuple[str, str]:
        """What is done, for errors, and the rule that it needs, as a Role or ClusterRole has it."""
        plural = f"{self.plural}/{subresource}" if subresource else self.plural
        of = "/".join(part for part in (namespace, name) if part)
        rule = f'{{apiGroups: ["{self.group}"], resources: ["{plural}"], verbs: ["{verb}"]}}'
        return f"{verb} {plural}{f' {of}' if of else ''}", rule


PODS = Resource("", "v1", "pods")
NODES = Resource("", "v1", "nodes", namespaced=False)
#: Core events, which `kubectl describe` reads and the kubelet writes.
EVENTS = Resource("", "v1", "events")

#: Seconds for pods/eviction: while a budget is new or contended the API server itself tries for 10 s (measured: 10.1).
EVICTION_TIMEOUT_S = 30.0
#: The same for a list.
LIST_TIMEOUT_S = 60.0
#: Items of a page of a list, client-go's.
PAGE_SIZE = 500
#: A watch that is silent for so long is begun again; the API server sends a bookmark about once a minute.
SILENCE_S = 90.0
#: How long the server should keep a watch open, as client-go at least.
WATCH_S = 300.0
_METHODS = {"get": "GET", "create": "POST", "patch": "PATCH", "delete": "DELETE"}


@dataclass(frozen=True)
class Listed(Generic[T]):
    """What a list had, and the resourceVersion to watch from."""

    items: tuple[T, ...]
    resource_version: str


class ApiClient(Transport):
    def warm(self, timeout_s: float | None = None) -> None:
        """Open or prove a connection. Needs no rights; every 30 s keeps it open."""
        with self.ask("GET", "/version", "get the version", total_s=timeout_s) as answer:
            answer.all(MAX_OBJECT)

    def get(self, resource: Resource, name: str, namespace: str = "", *, timeout_s: float | None = None) -> Object:
        return self._call("get", resource, namespace, name, timeout_s=timeout_s)

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
        what, rule = resource.about("list", namespace)
        query: dict[str, Any] = {"fieldSelector": field_selector, "labelSelector": label_selector}
        query |= {"resourceVersion": resource_version, "limit": 0 if resource_version == "0" else page_size}
        items: list[T] = []
        while True:
            try:
                with self.ask("GET", resource.path(namespace, **query), what, rule, timeout_s) as answer:
                    decoder = ItemDecoder(answer.chunks(), what)
                    items += [one for one in map(decode, decoder.items()) if one is not None]
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
        what, rule = resource.about("watch", namespace)
        query: dict[str, Any] = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": max(1, int(watch_s))}
        query |= {"fieldSelector": field_selector, "resourceVersion": resource_version}
        target = resource.path(namespace, **query)
        with self.ask("GET", target, what, rule, watch_s + silence_s, silence_s) as answer:
            yield events(answer.chunks(), what)

    def patch(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any] | Sequence[Any],
        namespace: str = "",
        *,
        subresource: str = "",
        merge: bool = False,
        timeout_s: float | None = None,
    ) -> Object:
        """The object as it is now. A strategic patch merges lists; with ``merge`` it replaces them. Conflict if
        ``body`` has a metadata.uid or resourceVersion that the object does not have.
        """
        about = "patch", resource, namespace, name, subresource
        kind = f"application/{'' if merge else 'strategic-'}merge-patch+json"
        return self._call(*about, body=body, content_type=kind, timeout_s=timeout_s)

    def create(self, resource: Resource, body: Mapping[str, Any], namespace: str = "") -> Object:
        """Raises AlreadyExists. Give it a name rather than generateName: it may be done though no answer came."""
        return self._call("create", resource, namespace, body=body)

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
        return self._call("delete", resource, namespace, name, body=options)

    def evict(self, name: str, namespace: str, *, uid: str = "", grace_period_s: int | None = None) -> Object:
        """pods/eviction: TooManyRequests with ``budget_blocks`` where a PodDisruptionBudget does not allow it."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": _delete_options(uid, "", grace_period_s),
        }
        return self._call("create", PODS, namespace, name, "eviction", body=body, timeout_s=EVICTION_TIMEOUT_S)

    def _call(
        self,
        verb: str,
        resource: Resource,
        namespace: str = "",
        name: str = "",
        subresource: str = "",
        *,
        body: object = None,
        timeout_s: float | None = None,
        content_type: str = "application/json",
    ) -> Object:
        what, rule = resource.about(verb, namespace, name, subresource)
        owner = "outrace" if verb == "patch" or not name else ""  # of what is written, in managedFields
        target = resource.path(namespace, name, subresource, fieldManager=owner)
        encoded = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        with self.ask(_METHODS[verb], target, what, rule, timeout_s, body=encoded, content_type=content_type) as answer:
            return parse_object(answer.all(MAX_OBJECT), what)


def _delete_options(uid: str, resource_version: str, grace_period_s: int | None) -> dict[str, object]:
    options: dict[str, object] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    preconditions = {"uid": uid, "resourceVersion": resource_version}
    if given := {key: value for key, value in preconditions.items() if value}:
        options["preconditions"] = given
    if grace_period_s is not None:
        options["gracePeriodSeconds"] = grace_period_s
    return options
