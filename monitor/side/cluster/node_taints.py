"""`--node-taints own`: while a condition holds the node has its taint, such as `outrace.io/memory-pressure:NoSchedule`.

A patch of a node replaces the list of its taints. So it names the resourceVersion that they were read with: whoever
wrote meanwhile makes it a Conflict, and they are read again. Others' taints go back as they came.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from math import inf
from typing import Any

from monitor.errors import MonitorError
from monitor.kube.backoff import BackOff
from monitor.kube.client import ApiClient, PatchType
from monitor.kube.errors import ApiError, Cancelled, Conflict, InvalidResponse, TooManyRequests
from monitor.kube.resources import NODES
from monitor.kube.retry import Retry
from monitor.policy.signals import DISK_PRESSURE, MEMORY_PRESSURE, PID_PRESSURE
from monitor.side.export.log import Log

EFFECT = "NoSchedule"
#: Condition -> the key of its taint, named as the `node.kubernetes.io/...` of the kubelet's conditions.
KEYS = {
    MEMORY_PRESSURE: "outrace.io/memory-pressure",
    DISK_PRESSURE: "outrace.io/disk-pressure",
    PID_PRESSURE: "outrace.io/pid-pressure",
}
#: How often a condition that goes on holding has its taint looked for: a node may be deleted and made anew.
LOOK_S = 300.0
#: Conflicts in a row before it waits: a node is written by its kubelet, some controllers and an operator.
TRIES = 4


class NodeTaints:
    """``holding()``: the conditions that hold, None while that is not known. `turn` writes what is due, `end` takes
    ours away. Not ``own``: it only removes what a daemon before, killed, has left. ``note(keys)`` writes down which of
    ours the node has, before they are set, and none when they are gone; raises OSError.
    """

    def __init__(
        self,
        client: ApiClient,
        node: str,
        own: bool,
        holding: Callable[[], Collection[str] | None],
        log: Log,
        clock: Callable[[], float] = time.monotonic,
        note: Callable[[Collection[str]], object] = lambda _: None,
        jitter: float = 1.0,
    ) -> None:
        self.own = own
        self._client = client
        self._node = node
        self._holding = holding
        self._log = log
        self._clock = clock
        self._retry = Retry(log, BackOff(cap_s=60.0, jitter=jitter, clock=clock), clock)
        self._note = note
        self._noted: set[str] | None = None  # None: not known
        self._known: set[str] | None = None  # ours that the node has; None: not known
        self._left: list[str] = []  # found, and not wanted
        self._due = 0.0

    def turn(self) -> None:
        holding = self._holding() if self.own else ()
        if holding is None:
            return
        wanted = {key for condition, key in KEYS.items() if condition in holding}
        now = self._clock()
        if now < self._due and (self._retry.problem or wanted == self._known):
            return
        self._known = None  # a patch whose answer was lost may have been done
        try:
            self._write(self._client, wanted)
        except MonitorError as error:
            self._failed(error)
            return
        self._known, self._due = wanted, now + LOOK_S if wanted else inf
        self._retry.works("taints of the node are written again", node=self._node)

    def end(self, client: ApiClient) -> None:
        """The daemon ends; ``client`` is one that this does not stop."""
        if not self.own or self._known == set():
            return
        try:
            self.remove(client)
        except (MonitorError, Cancelled) as error:
            self._log.warning(
                "taints of the node may be left; the next start removes them", node=self._node, problem=str(error)
            )
        else:
            self._known = set()

    def remove(self, client: ApiClient) -> None:
        """Have the node have none of ours. Raises KubeError."""
        self._write(client, set())

    def _write(self, client: ApiClient, wanted: Collection[str]) -> None:
        """Have the node have these of ours, and those of others. Raises Conflict after `TRIES`, and every KubeError."""
        if wanted:
            self._write_down({*wanted, *(self._noted or ())})
        self._write_node(client, wanted)
        self._write_down(set(wanted))

    def _write_down(self, keys: set[str]) -> None:
        """A full disk is what a taint may be about, so it is set without a record too: the next start with pods of the
        cluster looks at the node anyway.
        """
        if keys == self._noted:
            return
        try:
            self._note(keys)
        except OSError as error:
            self._log.warning("taints of the node are not written down", node=self._node, problem=str(error))
        else:
            self._noted = keys

    def _write_node(self, client: ApiClient, wanted: Collection[str]) -> None:
        for tries_left in reversed(range(TRIES)):
            version, taints = _read(client.get(NODES, self._node), self._node)
            ours = {one["key"] for one in taints if _is_ours(one)}
            added, self._left = sorted(set(wanted) - ours), sorted(ours - set(wanted))
            if not added and not self._left:
                return
            made = [one for one in taints if not _is_ours(one) or one["key"] in wanted]
            made += [{"key": key, "effect": EFFECT} for key in added]
            body = {"metadata": {"resourceVersion": version}, "spec": {"taints": made or None}}
            try:
                client.patch(NODES, self._node, body, kind=PatchType.MERGE)
            except Conflict:
                if not tries_left:
                    raise
                continue
            self._log.info("taints of the node written", node=self._node, added=added, removed=self._left)
            return

    def _failed(self, error: MonitorError) -> None:
        refused = isinstance(error, ApiError) and 400 <= error.code < 500
        if not self.own and refused and not isinstance(error, Conflict | TooManyRequests):
            self._known, self._due = set(), inf  # a right that this mode is not given: nothing to wait for
            if self._left:
                self._log.warning(
                    "a taint that a daemon before has left cannot be removed; use kubectl taint node NODE KEY-",
                    node=self._node,
                    keys=self._left,
                    problem=str(error),
                )
            return
        self._retry.failed(error, "taints of the node not written; trying again", node=self._node)
        self._due = self._retry.due


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
