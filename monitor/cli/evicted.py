"""`outrace evicted list|delete`: the evicted pods that are left behind in the API server."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing
from functools import reduce
from typing import Any

import click

from monitor.cli.main import LazyGroup
from monitor.cli.output import Columns, F, Finite, emit, output_option, seconds_of, table
from monitor.errors import EXIT_FAILURE, EXIT_FINDINGS, EXIT_OK, MonitorError
from monitor.evicted.sweep import BY_REASON, FAILED, OUTCOMES, EvictedPod, Progress, Sweep, choose
from monitor.kube.client import ApiClient
from monitor.kube.kubeconfig import find
from monitor.policy.errors import PolicyError


def duration(_ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """A Go duration, which may begin with days (`7d`, `1d12h`), in seconds."""
    if text is None:
        return None
    try:
        seconds = seconds_of(text)
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


_CLUSTER = (
    click.option("--kubeconfig", default="", metavar="FILE",
                 help="Kubeconfig; default: $KUBECONFIG, else the cluster of this pod, else ~/.kube/config."),
    click.option("--context", default="", metavar="NAME", help="Context of the kubeconfig."),
)  # fmt: skip
_SELECTION = (
    click.option("-n", "--namespace", "namespaces", multiple=True, metavar="NAME", callback=given,
                 help="Only pods of this namespace; repeatable. [all]"),
    click.option("-l", "--selector", metavar="LABELS", callback=given,
                 help="Only pods that this label selector matches, as in kubectl."),
    click.option("--node", metavar="NAME", callback=given, help="Only pods of this node."),
    click.option("--owner-kind", "owner_kinds", multiple=True, metavar="KIND", callback=given,
                 help="Only pods whose owner is of this kind: Deployment, ReplicaSet, StatefulSet, DaemonSet, Job, "
                      "none (bare pods), or a custom kind; repeatable. [all]"),
    click.option("--older-than", metavar="DURATION", callback=duration,
                 help="Only pods evicted longer ago than this: 90s, 12h, 7d."),
)  # fmt: skip


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


#: A line about how far it is on stderr, so often (seconds).
_PROGRESS_S = 5.0
COMMANDS = {
    "list": ("monitor.cli.evicted:list_", "Show them, their owners, and which would be deleted."),
    "delete": ("monitor.cli.evicted:delete", "Delete them; a dry run without --yes."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def evicted() -> None:
    """Pods that were evicted and left behind: phase Failed, reason Evicted, no running container."""


@click.command(name="list")
@with_options(*_SELECTION, *_CLUSTER)
@output_option
@click.option("--check", is_flag=True, help="Exit with code 4 if there is a pod to delete.")
def list_(output: str, check: bool, kubeconfig: str, context: str, **selection: Any) -> int:
    """Show evicted pods, oldest first, and why each stays or goes."""
    with closing(ApiClient(find(kubeconfig, context))) as client:
        found, pods = _chosen(Sweep(client, retry_s=10.0), **selection)
    answer = _document(found, pods)
    emit(output, answer, lambda: _text(answer["pods"]))
    return EXIT_FINDINGS if check and any(not pod.stays for pod in pods) else EXIT_OK


@click.command()
@with_options(*_SELECTION)
@click.option("--yes", is_flag=True, help="Delete. Without it: a dry run.")
@click.option("--rate", type=Finite(min=0.0, min_open=True), default=10.0, show_default=True, metavar="N",
              help="Average number of deletions a second.")  # fmt: skip
@with_options(*_CLUSTER)
@output_option
def delete(output: str, yes: bool, rate: float, kubeconfig: str, context: str, **selection: Any) -> int:
    """Delete evicted pods, oldest first; a dry run without --yes.

    A pod that changed since it was listed stays. After an interruption, run the command again.
    """
    with closing(ApiClient(find(kubeconfig, context))) as client:
        sweep = Sweep(client, rate=rate)
        found, pods = _chosen(sweep, **selection)
        going = [pod for pod in pods if not pod.stays]
        if not yes:
            answer = {"dry_run": True, **_document(found, going)}
            emit(output, answer, lambda: _text(answer["pods"]))
            click.echo(f"dry run: {len(going)} of {len(found)} evicted pods would be deleted; --yes does it", err=True)
            return EXIT_OK
        progress, shown_at = Progress(len(going)), time.monotonic()
        try:
            for progress in sweep.delete(going):
                if time.monotonic() - shown_at >= _PROGRESS_S:
                    shown_at = time.monotonic()
                    click.echo(str(progress), err=True)
        except (KeyboardInterrupt, MonitorError):
            click.echo(f"ended early: {progress}; run it again to go on", err=True)
            raise
    counts = {name: progress.outcomes[name] for name in OUTCOMES}
    outcome = {"dry_run": False, "total": progress.total, **counts, "problems": progress.problems}
    emit(output, outcome, lambda: [str(progress)])
    for problem in progress.problems:
        click.echo(f"outrace: error: {problem}", err=True)
    return EXIT_FAILURE if progress.outcomes[FAILED] else EXIT_OK


def _chosen(
    sweep: Sweep,
    namespaces: Iterable[str],
    selector: str | None,
    node: str | None,
    owner_kinds: Iterable[str],
    older_than: float | None,
) -> tuple[list[EvictedPod], list[EvictedPod]]:
    """All evicted pods, and those of these options with why each stays."""
    found = sweep.find(namespaces, selector or "", node or "")
    return found, choose(found, time.time(), older_than, owner_kinds)


def _document(found: Sized, pods: Sequence[EvictedPod]) -> dict[str, Any]:
    now, kinds = time.time(), Counter(pod.owner_kind for pod in pods)
    return {
        "pods": [_pod(pod, now) for pod in pods],
        "owners": {kind: {"pods": count} for kind, count in kinds.most_common()},
        "found": len(found),
        "to_delete": sum(not pod.stays for pod in pods),
    }


def _pod(pod: EvictedPod, now: float) -> dict[str, Any]:
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "node": pod.node,
        "owner": {"kind": pod.owner_kind, "name": pod.owner_name},
        "age_s": None if pod.since is None else int(max(0.0, now - pod.since)),
        "message": pod.message,
        "evidence": pod.evidence,
        "delete": not pod.stays,
        "stays": pod.stays,
    }


_COLUMNS: Columns = {
    "pod": lambda pod: f"{pod['namespace']}/{pod['name']}",
    "owner": lambda pod: "/".join(filter(None, pod["owner"].values())),
    "node": lambda pod: pod["node"] or None,
    "age": lambda pod: format_age(pod["age_s"]),
    "stays": lambda pod: pod["stays"] or None,
}


def _text(pods: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if pods:
        yield from (*table(_COLUMNS, pods), "")
    for pod in pods:
        if pod["evidence"] != BY_REASON:
            what = f"has no reason; evicted by its {pod['evidence']}: {pod['message']}"
            yield f"{pod['namespace']}/{pod['name']}: {what}"


def format_age(left: int | None) -> str:
    """Seconds in one unit, as kubectl: 90s, 15m, 30h, 73d."""
    if left is None:
        return "unknown"
    if left < 120:
        return f"{left}s"
    if left < 7200:
        return f"{left // 60}m"
    return f"{left // 3600}h" if left < 48 * 3600 else f"{left // 86400}d"
