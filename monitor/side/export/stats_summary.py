"""The kubelet's Summary API (``/stats/summary``): the part of it that is about memory, with exact numbers.

Written so that what reads a kubelet's answer can read this one: same names, same shape, bytes, RFC 3339 times.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from monitor.kernel.cgroupfs import MemoryReading
from monitor.pods.model import FoundPod
from monitor.side.export.http import Response
from monitor.side.view import View


def render(view: View) -> Response:
    """The summary as JSON."""
    view.refresh()
    return Response(200, "application/json", json.dumps(summary(view)).encode())


def summary(view: View) -> dict[str, Any]:
    """The Summary object: node, its "pods" system container (kubepods), and every pod with its containers."""
    now = _time(time.time())
    domains = view.domains()
    node: dict[str, Any] = {
        "nodeName": os.uname().nodename,
        "startTime": _time(view.started),
        "memory": _memory(domains["node"], now),
        "systemContainers": [],
    }
    if "kubepods" in domains:
        node["systemContainers"].append(
            {"name": "pods", "startTime": _time(view.started), "memory": _memory(domains["kubepods"], now)}
        )
    pods = [_pod(view, found, now) for found in view.pods.values()]
    # The last is ours; who reads a kubelet's summary passes over what it does not know.
    return {"node": node, "pods": pods, "outrace": {"braked": view.braked}}


def _pod(view: View, found: FoundPod, now: str) -> dict[str, Any]:
    pod = found.pod
    started = _time(view.first_seen.get(pod.uid, view.started))
    result: dict[str, Any] = {
        "podRef": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "startTime": started,
        "containers": [],
    }
    reading = view.memory(found.cgroup)
    if reading is not None:
        result["memory"] = _memory(reading, now)
    for name, path in found.containers.items():
        reading = view.memory(path)
        if reading is not None:
            result["containers"].append({"name": name, "startTime": started, "memory": _memory(reading, now)})
    return result


def _memory(reading: MemoryReading, now: str) -> dict[str, Any]:
    # inactiveFileBytes and activeFileBytes are ours: the kubelet leaves out what its working set is made of.
    memory: dict[str, Any] = {
        "time": now,
        "usageBytes": reading.usage,
        "workingSetBytes": reading.working_set,
        "inactiveFileBytes": reading.inactive_file,
        "activeFileBytes": reading.active_file,
    }
    if reading.available is not None:
        memory["availableBytes"] = reading.available
    return memory


def _time(unix_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))
