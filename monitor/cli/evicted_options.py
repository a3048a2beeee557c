"""What `outrace evicted list` and `delete` are given alike: a cluster, and which pods."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from monitor.cli.finite import Finite
from monitor.evicted.selection import Criteria
from monitor.policy.errors import PolicyError
from monitor.policy.gosyntax import parse_duration

F = TypeVar("F", bound=Callable[..., Any])

_DAYS = re.compile(r"(\d{1,5})d(.*)")


def duration(_ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """A Go duration, which may begin with days (`7d`, `1d12h`), in seconds."""
    if text is None:
        return None
    days, rest = (int(found[1]), found[2]) if (found := _DAYS.fullmatch(text)) else (0, text)
    try:
        seconds = days * 86400 + (parse_duration(rest) / 1e9 if rest else 0.0)
    except PolicyError:
        seconds = -1.0
    if seconds < 0:
        raise click.BadParameter(f"{text!r} is no duration (90s, 12h, 7d)", param=param)
    return seconds


def given(_ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Refuses "": `-n "$NAMESPACE"` where the variable is not set must not mean all of them."""
    if "" in (value if isinstance(value, tuple) else (value,)):
        raise click.BadParameter("is empty: leave the option out for all of them", param=param)
    return value


def duration_option(name: str, *names: str, text: str, default: str | None = None) -> Callable[[F], F]:
    return click.option(
        name, *names, metavar="DURATION", callback=duration, default=default, show_default=bool(default), help=text
    )


def cluster_options(command: F) -> F:
    for option in (
        click.option("--context", default="", metavar="NAME", help="The context of the kubeconfig."),
        click.option("--kubeconfig", default="", metavar="FILE",
                     help="Default: $KUBECONFIG, else the cluster that this pod is in, else ~/.kube/config."),
    ):  # fmt: skip
        command = option(command)
    return command


def selection_options(command: F) -> F:
    """Arrive as the argument ``criteria``."""
    count = click.IntRange(min=0)
    options = (
        click.option("-n", "--namespace", "namespaces", multiple=True, metavar="NAME", callback=given,
                     help="Only pods of this namespace; repeatable. [all]"),
        click.option("-l", "--selector", metavar="LABELS", callback=given,
                     help="Label selector, as kubectl's."),
        click.option("--node", metavar="NAME", callback=given, help="Only pods that were on this node."),
        click.option("--owner-kind", "owner_kinds", multiple=True, metavar="KIND", callback=given,
                     help="Only pods whose owner is of this kind: Deployment, ReplicaSet, StatefulSet, DaemonSet, Job, "
                          "none (bare pods), or a custom kind; repeatable. [all]"),
        duration_option("--older-than", text="Keep what was evicted more recently: 90s, 12h, 7d."),
        click.option("--keep", type=count, default=None, metavar="N",
                     help="Keep the N newest of all (as terminated-pod-gc-threshold)."),
        click.option("--keep-per-namespace", type=count, default=None, metavar="N",
                     help="Keep the N newest of each namespace."),
        click.option("--keep-per-owner", type=count, default=None, metavar="N",
                     help="Keep the N newest of each owner."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def criteria_of(options: dict[str, Any]) -> Criteria:
    """Takes what `selection_options` added out of ``options``."""
    return Criteria(
        namespaces=tuple(dict.fromkeys(options.pop("namespaces"))),
        label_selector=options.pop("selector") or "",
        node=options.pop("node") or "",
        owner_kinds=frozenset(options.pop("owner_kinds")),
        older_than_s=options.pop("older_than"),
        keep=options.pop("keep"),
        keep_per_namespace=options.pop("keep_per_namespace"),
        keep_per_owner=options.pop("keep_per_owner"),
    )


rate_option = click.option("--rate", type=Finite(min=0.0, min_open=True), default=10.0, show_default=True,
                           metavar="N", help="Deletes a second, on average.")  # fmt: skip
retry_option = duration_option(
    "--retry",
    "retry_s",
    text="How long a request is tried again while the server is away, throttles or fails.",
    default="1m",
)
