"""The three kinds of patch, as far as the tests need them."""

from __future__ import annotations

import copy
from typing import Any

from tests.kube.fake_http import Asked
from tests.kube.fake_store import Object, Refused

#: Lists that a strategic patch merges, by their key. (containerStatuses and taints have none: they are replaced.)
MERGE_KEYS = {"conditions": "type", "containers": "name", "initContainers": "name", "addresses": "type"}


def apply_patch(before: Object, asked: Asked) -> tuple[Object, Object]:
    """The patched object, and the metadata of the patch, which are preconditions. Raises Refused."""
    kind = asked.headers["Content-Type"]
    patch = asked.json()
    if kind == "application/json-patch+json":
        return _json_patch(before, patch), {}
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
    if strategic and isinstance(patch, list) and name in MERGE_KEYS:
        key = MERGE_KEYS[name]
        by_key = {one[key]: one for one in before or []}
        for one in patch:
            by_key[one[key]] = merged(by_key.get(one[key]), one, strategic)
        return list(by_key.values())
    return copy.deepcopy(patch)


def _json_patch(before: Object, operations: list[Object]) -> Object:
    """add, replace, remove and test of members of maps."""
    after = copy.deepcopy(before)
    for operation in operations:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        inside: Any = after
        for name in parents:
            inside = inside[name]
        if operation["op"] == "test":
            if inside.get(last) != operation["value"]:
                raise Refused(422, "Invalid", "the server rejected our request due to an error in our request")
        elif operation["op"] == "remove":
            del inside[last]
        else:
            inside[last] = operation["value"]
    return after
