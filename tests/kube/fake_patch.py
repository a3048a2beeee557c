"""The two kinds of patch that outrace sends."""

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
