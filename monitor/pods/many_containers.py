"""A pod of very many containers, kept as a few that ask for the same.

1.5 MiB of a pod are 20,000 containers, and a tenant decides how many there are: ten such pods take 120 MiB here. What
is ranked, measured and killed is the pod, so sums do: requests and limits of the pod, and its class, stay as they are.
What is lost is what belongs to one container: its oom_score_adj and its own limit for ephemeral storage. (Before
sidecars, in policy kubelet-1.17, the request of the pod is the larger where an init container follows sidecars.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from monitor.policy.errors import PolicyError
from monitor.policy.pods import Container, Pod, Quantities, pod_from_object
from monitor.policy.qos import compute_qos_class
from monitor.policy.quantity import Quantity

#: Containers, init containers with them, of which each is kept. The kubelet has 110 pods on a node, of 1 to 10 each.
MOST_CONTAINERS = 200


def summed(obj: Mapping[str, Any]) -> dict[str, Any] | None:
    """The Pod ``obj`` with one regular container, one init container and one sidecar; None where it cannot be read."""
    try:
        pod = pod_from_object(obj)
    except PolicyError:
        return None
    # The class is that of all the containers' figures, which are not the sums' where init containers are many.
    status = {**obj["status"], "qosClass": pod.qos_class_status or compute_qos_class(pod)}
    none: dict[str, Any] = {"containerStatuses": [], "initContainerStatuses": []}
    return {**obj, "spec": {**obj["spec"], **_few(pod)}, "status": {**status, **none}}


def _few(pod: Pod) -> dict[str, list[dict[str, Any]]]:
    regular = _sums([c.requests for c in pod.containers]), _sums([c.limits for c in pod.containers])
    sidecars = [c for c in pod.init_containers if c.sidecar]
    beside = _sums([c.requests for c in sidecars]), _sums([c.limits for c in sidecars])
    first = _largest_step(pod.init_containers, "requests"), _largest_step(pod.init_containers, "limits")
    # The init container comes first: what runs beside it is in its figure already.
    init = [_made("init", *first), {**_made("sidecars", *beside), "restartPolicy": "Always"}]
    return {"containers": [_made("containers", *regular)], "initContainers": init}


def _sums(all_of: Iterable[Quantities]) -> dict[str, Quantity]:
    sums: dict[str, Quantity] = {}
    for one in all_of:
        _add(sums, one)
    return sums


def _add(sums: dict[str, Quantity], one: Quantities) -> None:
    for name, amount in one.items():
        sums[name] = sums[name] + amount if name in sums else amount


def _largest_step(init_containers: Iterable[Container], which: str) -> dict[str, Quantity]:
    """Of each resource the most that an init container has together with the sidecars before it."""
    beside: dict[str, Quantity] = {}
    most: dict[str, Quantity] = {}
    for container in init_containers:
        own: Quantities = getattr(container, which)
        if container.sidecar:
            _add(beside, own)
            continue
        for name, amount in own.items():
            step = amount + beside[name] if name in beside else amount
            if name not in most or step > most[name]:
                most[name] = step
    return most


def _made(name: str, requests: Quantities, limits: Quantities) -> dict[str, Any]:
    amounts = {"requests": requests, "limits": limits}
    return {
        "name": name,
        "resources": {key: {of: _text(amount) for of, amount in found.items()} for key, found in amounts.items()},
    }


def _text(amount: Quantity) -> str:
    """Binary suffixes are read up to 2^63 - 1, as the kubelet does; a sum of two requests may be more."""
    text = str(amount)
    return text if Quantity.parse(text) == amount else str(Quantity(amount.nanos))
