"""How `outrace explain` is called on a node of the tests, in this process, and its answers."""

import json
from typing import Any

from monitor.lab.node import LabNode
from tests.cli.called import called


def options(node: LabNode, *more: str) -> list[str]:
    """The options that find ``node``, with no daemon to ask."""
    found = ("--node-cgroup", node.cgroup.name, "--pods", f"manifests:{node.manifests}")
    return [*found, "--state-dir", str(node.manifests / "state"), *more]


def text(node: LabNode, *arguments: str) -> str:
    done = called("explain", *options(node), *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def explain(node: LabNode, *arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(text(node, *arguments, "-o", "json"))
    return answer


def names(answer: dict[str, Any]) -> list[str]:
    return [row["pod"] for row in answer["order"]]
