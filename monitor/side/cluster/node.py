"""The node as outrace sees it, in the API server: conditions (`outrace.io/MemoryPressure` and so on, and
`outrace.io/PodHeld`), and with `--node-taints own` a taint while a condition holds (`outrace.io/memory-pressure`).

Conditions have types of their own: the three without a prefix are the kubelet's, which writes them over every 10 s,
also where it has no thresholds (then always False: the setters in pkg/kubelet/nodestatus).
A patch of a node replaces the list of its taints. So it names the resourceVersion of the read: after another write the
API server answers Conflict, and the helper reads them again. The taints of others stay as they were. The node is the
only record of ours: a start without the option reads it once, and removes what a killed daemon left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from monitor.actions.status import timestamp
from monitor.errors import MonitorError
from monitor.kube.client import NODES, ApiClient
from monitor.kube.errors import Cancelled, Conflict, InvalidResponse
from monitor.kube.retry import Retry
from monitor.policy.signals import DISK_PRESSURE, MEMORY_PRESSURE, PID_PRESSURE
from monitor.side.export.log import Log
from monitor.side.node_state import NodeState

PREFIX = "outrace.io/"
#: How often a condition that does not change is written (the kubelet's nodeStatusReportFrequency).
HEARTBEAT_S = 300.0
#: Pods are held (`--mode hold`, `--hard-grace`).
POD_HELD = "PodHeld"
#: The held pods are written no more often, seconds: a pod can be held and released twice a second.
HELD_S = 10.0
#: Condition -> the kubelet's reason and a message, where it holds and where not.
_WORDS: Mapping[str, Mapping[bool, tuple[str, str]]] = {
    MEMORY_PRESSURE: {
        True: ("HasInsufficientMemory", "outrace has insufficient memory available"),
        False: ("HasSufficientMemory", "outrace has sufficient memory available"),
    },
    DISK_PRESSURE: {
        True: ("HasDiskPressure", "outrace has disk pressure"),
        False: ("HasNoDiskPressure", "outrace has no disk pressure"),
    },
    PID_PRESSURE: {
        True: ("HasInsufficientPID", "outrace has insufficient PID available"),
        False: ("HasSufficientPID", "outrace has sufficient PID available"),
    },
    POD_HELD: {True: ("HoldsPod", "outrace holds {held}"), False: ("HoldsNoPod", "outrace holds no pod")},
}

EFFECT = "NoSchedule"
#: Condition -> the key of its taint, named as the `node.kubernetes.io/...` of the kubelet's conditions.
KEYS = {
    MEMORY_PRESSURE: "outrace.io/memory-pressure",
    DISK_PRESSURE: "outrace.io/disk-pressure",
    PID_PRESSURE: "outrace.io/pid-pressure",
}
#: How often the taint of a condition that still holds is checked: a node may be deleted and made anew.
LOOK_S = 300.0
#: Conflicts in a row before it waits: a node is written by its kubelet, some controllers and an operator.
TRIES = 4
#: What is written, in words of the log.
_CONDITIONS, _TAINTS = "node conditions", "taints of the node"
_BY_HAND = " ".join(("kubectl taint node {}", *(f"{key}-" for key in KEYS.values())))


@dataclass(eq=False)
class NodeReport:
    """`write_conditions` and `write_taints` write what is due, `end` removes our taints. ``name``: of the node."""

    client: ApiClient
    name: str
    node: NodeState
    log: Log
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self.own_taints = self.node.config.taints_node
        self._held_text, self._held_due = "", 0.0
        self._written: dict[str, object] = {}  # what -> as the node has it; nothing while that is not known
        self._due = {_CONDITIONS: 0.0, _TAINTS: 0.0}
        self._retries = {what: Retry(self.log, cap_s=60.0, clock=self.clock) for what in self._due}

    def _write_due(self, what: str, wanted: object, write: Callable[[], object], again_s: float) -> None:
        """Write what changed, or was written ``again_s`` ago; after a failure when that is due."""
        now, retry = self.clock(), self._retries[what]
        if now < self._due[what] and (retry.problem or wanted == self._written.get(what)):
            return
        self._written.pop(what, None)  # a patch whose answer was lost may have been done
        try:
            write()
        except MonitorError as error:
            by_hand = {"remedy": _BY_HAND.format(self.name)} if what == _TAINTS else {}
            retry.failed(error, f"{what} not written; trying again", node=self.name, **by_hand)
            self._due[what] = retry.due
            return
        self._written[what], self._due[what] = wanted, now + again_s
        retry.works(f"{what} are written again", node=self.name)

    def write_conditions(self) -> None:
        if self.node.state is None:
            return
        now, holding = self.clock(), self.node.conditions
        if (text := self.node.held_names()) != self._held_text and now >= self._held_due:
            self._held_text, self._held_due = text, now + HELD_S
        state = {**{name: name in holding for name in KEYS}, POD_HELD: bool(self._held_text)}
        write = partial(self._put_conditions, state)
        self._write_due(_CONDITIONS, (state, self._held_text), write, HEARTBEAT_S)

    def _put_conditions(self, state: Mapping[str, bool]) -> None:
        """One that is as the node has it keeps its lastTransitionTime, also over a restart."""
        status = self.client.get(NODES, self.name).get("status")
        found = status.get("conditions") if isinstance(status, dict) else None
        listed = found if isinstance(found, list) else []
        left = [(one.get("type"), one.get("status")) for one in listed if isinstance(one, dict)]
        now = timestamp(self.wall())
        made = [
            {
                "type": f"{PREFIX}{name}",
                "status": str(holds),
                "reason": f"Outrace{_WORDS[name][holds][0]}",
                "message": _WORDS[name][holds][1].format(held=self._held_text),
                "lastHeartbeatTime": now,
                **({} if (f"{PREFIX}{name}", str(holds)) in left else {"lastTransitionTime": now}),
            }
            for name, holds in state.items()
        ]
        self.client.patch(NODES, self.name, {"status": {"conditions": made}}, subresource="status")

    def write_taints(self) -> None:
        if self.node.state is None:
            return
        wanted = {key for condition, key in KEYS.items() if self.own_taints and condition in self.node.conditions}
        self._write_due(_TAINTS, wanted, partial(self.make_taints, self.client, wanted), LOOK_S if wanted else inf)

    def end(self, client: ApiClient) -> None:
        """Remove our taints as the daemon ends; ``client`` still works then."""
        if self._written.get(_TAINTS) == set():
            return
        try:
            self.make_taints(client, set())
        except (MonitorError, Cancelled) as error:
            text = "taints of the node may be left; the next start removes them, if it may"
            self.log.warning(text, node=self.name, problem=str(error), remedy=_BY_HAND.format(self.name))

    def make_taints(self, client: ApiClient, wanted: set[str]) -> None:
        """Make these our taints of the node; others stay. Raises Conflict after `TRIES`, and every KubeError."""
        for tries_left in reversed(range(TRIES)):
            version, taints = _read(client.get(NODES, self.name), self.name)
            ours = {one["key"] for one in taints if _is_ours(one)}
            added, removed = sorted(wanted - ours), sorted(ours - wanted)
            if not added and not removed:
                return
            made = [one for one in taints if not _is_ours(one) or one["key"] in wanted]
            made += [{"key": key, "effect": EFFECT} for key in added]
            body = {"metadata": {"resourceVersion": version}, "spec": {"taints": made or None}}
            try:
                client.patch(NODES, self.name, body, merge=True)
            except Conflict:
                if not tries_left:
                    raise
                continue
            self.log.info("taints of the node written", node=self.name, added=added, removed=removed)
            return


def _read(node: dict[str, Any], name: str) -> tuple[str, list[dict[str, Any]]]:
    """resourceVersion and taints."""
    metadata, spec = node.get("metadata"), {} if node.get("spec") is None else node["spec"]
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    taints = (spec.get("taints") or []) if isinstance(spec, dict) else None
    if not isinstance(version, str) or not version or not isinstance(taints, list):
        raise InvalidResponse(f"get nodes {name}: no resourceVersion, or taints that are no list")
    return version, taints


def _is_ours(taint: object) -> bool:
    return isinstance(taint, dict) and taint.get("key") in KEYS.values() and taint.get("effect") == EFFECT
