"""Resources of the API and their paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode


@dataclass(frozen=True)
class Resource:
    """A kind of object: ``group`` is "" for the core; ``plural`` as in the path."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Without ``namespace``: of all namespaces."""
        parts = ["api", self.version] if not self.group else ["apis", self.group, self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/" + "/".join(quote(part, safe="") for part in parts)

    def rbac_rule(self, verb: str, subresource: str = "") -> str:
        """The rule that allows ``verb``, as a Role or ClusterRole has it."""
        plural = f"{self.plural}/{subresource}" if subresource else self.plural
        return f'{{apiGroups: ["{self.group}"], resources: ["{plural}"], verbs: ["{verb}"]}}'


PODS = Resource("", "v1", "pods")
NODES = Resource("", "v1", "nodes", namespaced=False)
#: Core events, which `kubectl describe` reads and the kubelet writes.
EVENTS = Resource("", "v1", "events")


def with_query(path: str, parameters: Mapping[str, object]) -> str:
    """A request's target; parameters that are empty or None are left out, booleans are as Go parses them."""
    given = {
        key: str(value).lower() if isinstance(value, bool) else value
        for key, value in parameters.items()
        if value not in ("", None, False)
    }
    return f"{path}?{urlencode(given)}" if given else path
