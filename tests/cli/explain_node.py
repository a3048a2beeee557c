"""A small node made of real cgroups for `outrace explain`, and its answers: what test_explain_*_cli.py share."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from monitor.lab.node import LabNode
from tests.live import MIB, filled, outrace

MEMORY = "memory.available"
NOTHING = "nothing is starved: nobody would be evicted now"


def explained_node() -> Iterator[LabNode]:
    """A pod of each QoS class and a critical one; the Burstable one is furthest above its request."""
    if os.geteuid() != 0:
        pytest.skip("not root: cannot make a cgroup")
    with LabNode("test-explain", 256 * MIB) as node:
        pods = (
            (node.add_pod("guaranteed", "Guaranteed", request=64 * MIB), 24),
            (node.add_pod("burstable", "Burstable", request=8 * MIB), 40),
            (node.add_pod("besteffort"), 16),
            (node.add_pod("critical", priority=2 * 10**9), 4),
        )
        for pod, mib in pods:
            filled(node, pod, mib)
        yield node


def options(node: LabNode, *more: str) -> list[str]:
    """The options that find ``node``, with no daemon to ask."""
    state = ("--state-dir", str(node.manifests / "state"))
    return [
        *("--node-cgroup", node.cgroup.name, "--pods", f"manifests:{node.manifests}"),
        *(*state, *more),
    ]


def explain(node: LabNode, *arguments: str) -> dict[str, Any]:
    done = outrace("explain", *options(node), *arguments, "-o", "json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def text(node: LabNode, *arguments: str) -> str:
    done = outrace("explain", *options(node), *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def names(answer: dict[str, Any]) -> list[str]:
    return [row["pod"] for row in answer["order"]]
