"""An API server: lists in pages, watches, patches, preconditions, evictions, RBAC; as nasty as `FakeServer` can be."""

import base64
import copy
import json
import ssl
import time
from collections.abc import Callable
from typing import Any

from tests.kube.fake_http import Asked, FakeServer, Reply, status_object
from tests.kube.fake_store import Key, Object, Refused, Store

KINDS = {
    "pods": ("v1", "Pod"),
    "nodes": ("v1", "Node"),
    "events": ("v1", "Event"),
    "namespaces": ("v1", "Namespace"),
    "serviceaccounts": ("v1", "ServiceAccount"),
    "poddisruptionbudgets": ("policy/v1", "PodDisruptionBudget"),
}
#: Those the server knows; another one is a 400.
FIELDS = {"metadata.name", "metadata.namespace", "spec.nodeName", "status.phase"}
#: How the tokens end that `serviceaccounts/token` gives out.
WITHOUT_RIGHTS = "-without-rights"
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class FakeApiServer(FakeServer):
    """``forbidden``: (verb, resource) pairs. A PodDisruptionBudget protects all pods with its labels, always."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.store = Store()
        self.forbidden: set[tuple[str, str]] = set()
        self.bookmark_s = 60.0
        super().__init__(context)

    def answer(self, asked: Asked, reply: Reply) -> None:
        if asked.path == "/version":
            reply.json(200, {"major": "1", "minor": "36", "gitVersion": "v1.36.2"})
            return
        plural, namespace, name, sub = _parsed(asked.path)
        verb = VERBS[asked.method]
        if asked.method == "GET" and not name:
            verb = "watch" if asked.watching else "list"
        self._authorize(asked, verb, f"{plural}/{sub}" if sub else plural, namespace, name)
        key = (plural, namespace, name)
        if verb == "watch":
            self._watch(asked, reply, plural, namespace)
        elif verb == "list":
            reply.json(200, self._list(asked, plural, namespace))
        elif verb == "get":
            reply.json(200, self.store.get(key))
        elif verb == "create" and sub == "eviction":
            reply.json(201, self._evict(asked, key))
        elif verb == "create" and sub == "token":
            token = f"{name}{WITHOUT_RIGHTS}"
            self.tokens = self.tokens and {*self.tokens, token}
            reply.json(201, {"kind": "TokenRequest", "status": {"token": token}})
        elif verb == "create":
            reply.json(201, self._create(asked, plural, namespace))
        elif verb == "delete":
            reply.json(200, self._delete(key, asked.json() if asked.body else {}))
        else:
            reply.json(200, self._change(asked, key, sub))

    def _authorize(self, asked: Asked, verb: str, resource: str, namespace: str, name: str) -> None:
        nobody = asked.headers.get("Authorization", "").endswith(WITHOUT_RIGHTS)
        if nobody or (verb, resource) in self.forbidden:
            which = f'{resource.partition("/")[0]} "{name}"' if name else resource
            where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
            right = f'cannot {verb} resource "{resource}" in API group ""{where}'
            user = "system:serviceaccount:outrace:outrace"
            raise Refused(403, "Forbidden", f'{which} is forbidden: User "{user}" {right}')

    def _list(self, asked: Asked, plural: str, namespace: str) -> Object:
        query, fields = asked.query, _selector(asked.query.get("fieldSelector", ""))
        labels = _labels(query.get("labelSelector", ""))
        wanted, limit, start = query.get("resourceVersion", ""), int(query.get("limit", 0)), 0
        version = self.store.version
        if token := query.get("continue"):
            if wanted:
                raise Refused(400, "BadRequest", "specifying resource version is not allowed when using continue")
            made = json.loads(base64.urlsafe_b64decode(token))
            version, start = made["rv"], made["start"]
            if version < self.store.oldest:
                raise Refused(410, "Expired", "The provided continue parameter is too old to display a consistent list")
        elif wanted == "0":
            limit = 0  # the watch cache has no pages
        elif wanted and int(wanted) > version:
            why = f"Too large resource version: {wanted}, current: {version}"
            causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
            raise Refused(504, "Timeout", why, {"causes": causes, "retryAfterSeconds": 1})
        found = self.store.all(plural, namespace, lambda one: fields(one) and labels(one))
        page = found[start : start + limit] if limit else found[start:]
        metadata: Object = {"resourceVersion": str(version)}
        if start + len(page) < len(found):
            token = json.dumps({"rv": version, "start": start + len(page)})
            metadata["continue"] = base64.urlsafe_b64encode(token.encode()).decode()
        api_version, kind = KINDS[plural]
        return {"kind": f"{kind}List", "apiVersion": api_version, "metadata": metadata, "items": page}

    def _watch(self, asked: Asked, reply: Reply, plural: str, namespace: str) -> None:
        query = asked.query
        after, matches = int(query.get("resourceVersion") or 0), _selector(query.get("fieldSelector", ""))
        bookmark_s = self.bookmark_s if query.get("allowWatchBookmarks") == "true" else float("inf")
        until = time.monotonic() + float(query.get("timeoutSeconds", 1800))
        reply.chunked()
        ended = self.ended
        try:
            for kind, made in self.store.events(plural, namespace, after, matches, until, bookmark_s, ended):
                if ended.is_set():
                    return
                reply.chunk(json.dumps({"type": kind, "object": made}).encode() + b"\n")
        except Refused as refused:  # the answer has begun with 200
            error = {"type": "ERROR", "object": status_object(*refused.args)}
            reply.chunk(json.dumps(error).encode() + b"\n")
        reply.chunk(b"")

    def _create(self, asked: Asked, plural: str, namespace: str) -> Object:
        made = asked.json()
        api_version, kind = KINDS[plural]
        if made.get("kind") != kind or made.get("apiVersion") != api_version:
            raise Refused(400, "BadRequest", f"{made.get('apiVersion')}/{made.get('kind')} is not {api_version}/{kind}")
        metadata = made.get("metadata", {})
        if kind == "Pod":
            made = {**made, "status": {"phase": "Pending", "qosClass": "BestEffort"}}
        if metadata.setdefault("namespace", namespace) != namespace:
            raise Refused(400, "BadRequest", "the namespace of the object does not match the namespace on the request")
        involved = made.get("involvedObject", {}).get("namespace", "")
        if kind == "Event" and (involved or "default") != namespace:
            raise Refused(422, "Invalid", "involvedObject.namespace: Invalid value: does not match event.namespace")
        if not namespace:
            del metadata["namespace"]
        return self.store.create(plural, made)

    def _change(self, asked: Asked, key: Key, sub: str) -> Object:
        """Of a pod or node the status only by its subresource, and the rest only without."""

        def change(before: Object) -> Object:
            after, given = apply_patch(before, asked)
            if given.get("uid", was := before["metadata"]["uid"]) != was:
                message = f'Invalid value: "{given["uid"]}": field is immutable'
                causes = [{"reason": "FieldValueInvalid", "message": message, "field": "metadata.uid"}]
                what = f'{KINDS[key[0]][1]} "{key[2]}" is invalid: metadata.uid: {message}'
                raise Refused(422, "Invalid", what, {"causes": causes})
            _preconditions(key, before, given)
            if sub:
                after = {**before, "status": after.get("status")}
            elif key[0] in ("pods", "nodes") and "status" in before:
                after["status"] = before["status"]
            was, now = (one.get("status", {}).get("qosClass") for one in (before, after))
            if key[0] == "pods" and was and was != now:
                what = f'Pod "{key[2]}" is invalid: status.qosClass: Invalid value: "{now}": field is immutable'
                raise Refused(422, "Invalid", what)
            after["metadata"] = {**after["metadata"], "uid": before["metadata"]["uid"]}
            after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
            return after

        kept = self.store.get(key)["metadata"].get("finalizers")
        changed = self.store.update(key, change)
        if kept and not changed["metadata"].get("finalizers") and changed["metadata"].get("deletionTimestamp"):
            return self.store.delete(key)  # the last finalizer was all that it waited for
        return changed

    def _evict(self, asked: Asked, key: Key) -> Object:
        eviction = asked.json()
        if eviction.get("kind") != "Eviction" or eviction["metadata"].get("name") != key[2]:
            raise Refused(400, "BadRequest", "name in URL does not match name in Eviction object")
        pod = self.store.get(key)
        if pod["status"].get("phase") == "Running" and self._protected(pod):
            why = "Cannot evict pod as it would violate the pod's disruption budget."
            cause = {"reason": "DisruptionBudget", "message": "The disruption budget db needs 1 healthy pod"}
            raise Refused(429, "TooManyRequests", why, {"causes": [cause]})
        self._delete(key, eviction.get("deleteOptions") or {})
        return status_object(201, "", "") | {"status": "Success"}

    def _protected(self, pod: Object) -> bool:
        labels = pod["metadata"].get("labels", {}).items()
        budgets = self.store.all("poddisruptionbudgets", pod["metadata"]["namespace"])
        return any(one["spec"]["selector"]["matchLabels"].items() <= labels for one in budgets)

    def _delete(self, key: Key, options: Object) -> Object:
        """A pod that runs or has finalizers is only marked: its kubelet deletes it."""
        found = self.store.get(key)
        _preconditions(key, found, options.get("preconditions") or {})
        over = found.get("status", {}).get("phase") in ("Failed", "Succeeded")
        grace = options.get("gracePeriodSeconds", found.get("spec", {}).get("terminationGracePeriodSeconds", 30))
        kept = found["metadata"].get("finalizers") or (grace and not over and found.get("spec", {}).get("nodeName"))
        if key[0] == "pods" and kept:
            return self.store.update(key, _marked)
        return self.store.delete(key)


def _marked(pod: Object) -> Object:
    pod["metadata"].setdefault("deletionTimestamp", "2026-11-24T12:00:00Z")
    return pod


def _preconditions(key: Key, found: Object, given: Object) -> None:
    for name in ("uid", "resourceVersion"):
        if given.get(name) not in (None, "", found["metadata"][name]):
            why = f"Precondition failed: {name} in precondition: {given[name]}; the object has been modified"
            raise Refused(409, "Conflict", f'Operation cannot be fulfilled on {key[0]} "{key[2]}": {why}')


def _parsed(path: str) -> tuple[str, str, str, str]:
    """plural, namespace, name, subresource."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    plural, name, sub = [*parts, "", ""][:3]
    if plural not in KINDS:
        raise Refused(404, "NotFound", "the server could not find the requested resource")
    return plural, namespace, name, sub


def _selector(text: str) -> Callable[[Object], bool]:
    wanted = [term.partition("=")[::2] for term in text.split(",") if term]
    for field, _ in wanted:
        if field not in FIELDS:
            raise Refused(400, "BadRequest", f'field label not supported: "{field}"')
    return lambda made: all(_field(made, field) == value for field, value in wanted)


def _labels(text: str) -> Callable[[Object], bool]:
    """Equality only."""
    wanted = dict(term.partition("=")[::2] for term in text.split(",") if term)
    return lambda made: wanted.items() <= made["metadata"].get("labels", {}).items()


def _field(made: Any, dotted: str) -> str:
    for name in dotted.split("."):
        made = made.get(name, {}) if isinstance(made, dict) else {}
    return made if isinstance(made, str) else ""


def pod(name: str, node: str = "node-1", namespace: str = "default", **status: object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 30, "containers": [{"name": "main"}]},
        "status": copy.deepcopy({"phase": "Running", "qosClass": "BestEffort", **status}),
    }


def named(found: Object) -> str:
    return str(found["metadata"]["name"])


def apply_patch(before: Object, asked: Asked) -> tuple[Object, Object]:
    """The patched object, and the metadata of the patch, which are preconditions. Raises Refused."""
    kind = asked.headers["Content-Type"]
    patch = asked.json()
    if kind not in ("application/strategic-merge-patch+json", "application/merge-patch+json"):
        raise Refused(415, "UnsupportedMediaType", f"the body of the request was in an unknown format - {kind}")
    return merged(before, patch, strategic=kind.startswith("application/strategic")), patch.get("metadata") or {}


def merged(before: Any, patch: Any, strategic: bool, name: str = "") -> Any:
    if isinstance(patch, dict):
        found = dict(before) if isinstance(before, dict) else {}
        for key, value in patch.items():
            if value is None:
                found.pop(key, None)
            else:
                found[key] = merged(found.get(key), value, strategic, key)
        return found
    if strategic and isinstance(patch, list) and name == "conditions":  # containerStatuses and taints are replaced
        by_type = {one["type"]: one for one in before or []}
        for one in patch:
            by_type[one["type"]] = merged(by_type.get(one["type"]), one, strategic)
        return list(by_type.values())
    return copy.deepcopy(patch)


def relist(api: FakeApiServer, name: str, namespace: str = "default", relisted_before: bool = False) -> str:
    """The kubelet sees that all containers have ended, and writes that. What it knew of the phase until then counts: a
    pod that is Failed stays so; another one (or one that became Failed after the kubelet had looked,
    ``relisted_before``) is started again, and whatever the status was is written over. The phase it wrote.
    """

    def change(pod: dict[str, Any]) -> dict[str, Any]:
        status = pod["status"]
        failed = status["phase"] == "Failed" and not relisted_before
        ended = {"terminated": {"exitCode": 137, "reason": "Error"}}
        status["containerStatuses"] = [{"name": "main", "state": ended if failed else {"running": {}}}]
        if not failed:
            status["phase"] = "Running"
            for key in ("reason", "message"):
                status.pop(key, None)
        return pod

    return str(api.store.update(("pods", namespace, name), change)["status"]["phase"])
