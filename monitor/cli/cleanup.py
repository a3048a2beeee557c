"""`outrace cleanup`: dead containers and unused images of a runtime, shown or removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from monitor.actions.cleanup import CONTAINERS, IMAGES, REMOVED, WOULD_GO, clean
from monitor.cli.output import emit, format_bytes, output_option, table_lines
from monitor.cli.spans import plain
from monitor.errors import EXIT_FAILURE, EXIT_OK, MonitorError
from monitor.pods.stores import CRI, PODMAN, Store, parse_store, store_of
from monitor.policy.layout import DELETE_CONTAINERS, DELETE_IMAGES
from monitor.settings.config import RunConfig

#: Seconds for all of it: less than the daemon waits for it (`monitor.actions.reclaim`), so that it can say what hung.
WITHIN_S = 110
#: Seconds for a look of `outrace explain`.
EXPLAIN_S = 10


class _Runtime(click.ParamType[Store]):
    name = "runtime"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Store:
        try:
            found = parse_store(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if found is None:
            self.fail(f"{value!r} is not {CRI}, {CRI}:unix:///PATH or {PODMAN}", param, ctx)
        return found


@click.command()
@click.argument("what", type=click.Choice([CONTAINERS, IMAGES]))
@click.option(
    "--runtime",
    "store",
    type=_Runtime(),
    required=True,
    metavar="RUNTIME",
    help="Whose: cri (the first socket that is there), cri:unix:///PATH, podman (root's).",
)
@click.option("--remove", is_flag=True, help="Remove them. Without it nothing is changed.")
@click.option(
    "--seen",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep images seen for the first time less than 2 minutes ago; FILE remembers when. The daemon's own is "
    "cleanup-images.json in its state dir. [default: of any age]",
)
@click.option(
    "--within", type=click.IntRange(1, 3600), default=WITHIN_S, show_default=True, help="Seconds for all of it."
)
@output_option
def cleanup(what: str, store: Store, remove: bool, seen: Path | None, within: int, output: str) -> int:
    """Show dead containers, or unused images, that the daemon would remove before it evicts a pod for a full disk.

    Containers: those that have exited; of a pod that runs, or that a kubelet manages, the last of each name stays.
    Images: those that no container uses, whether it runs or not. With the label outrace/never none of them goes.
    """
    report = clean(store, what, remove=remove, within_s=within, seen=seen)
    answer = report.to_json()
    emit(output, answer, lambda: lines(answer))
    for problem in answer["problems"] if output == "table" else ():
        click.echo(f"outrace: {plain(problem)}", err=True)
    return EXIT_FAILURE if report.failed else EXIT_OK


def reclaimable(config: RunConfig, actions: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What those of ``actions`` would remove now that are a runtime's; ``problem`` where it does not say."""
    commands = {DELETE_CONTAINERS: config.reclaim_containers, DELETE_IMAGES: config.reclaim_images}
    for action in actions:
        store = store_of(commands[action])
        if store is None:
            continue
        what = CONTAINERS if action == DELETE_CONTAINERS else IMAGES
        row: dict[str, Any] = {"action": action, "runtime": str(store), "what": what, "removing": False}
        row |= dict.fromkeys(("count", "bytes", "unknown_size"), None) | {"problem": ""}
        try:
            found = clean(store, what, remove=False, within_s=EXPLAIN_S).to_json()
        except MonitorError as error:
            row["problem"] = str(error)
        else:
            row |= {key: found[key] for key in ("runtime", "count", "bytes", "unknown_size")}
        yield row


def lines(answer: dict[str, Any]) -> Iterator[str]:
    """The report as text."""
    rows = [[one["kind"], plain(one["name"]), format_bytes(one["bytes"]), one["fate"]] for one in answer["items"]]
    rows += [[one["kind"], plain(one["name"]), "-", f"stays: {plain(one['why'])}"] for one in answer["kept"]]
    if rows:
        yield from table_lines(["kind", "name", "size", "fate"], rows)
    if answer["left_out"]:
        yield f"{answer['left_out']} more"
    yield summary(answer)
    for one in answer["freed"] or ():
        yield f"{one['path']}: {format_bytes(one['bytes'])} and {one['inodes']} inodes more are free"


def summary(answer: dict[str, Any]) -> str:
    """`containers: 2 would go, 10.5Mi by the runtime's figures`."""
    size = format_bytes(answer["bytes"])
    if answer["what"] == IMAGES:
        size = f"at most {size}"  # a layer counts in every image that has it
    if answer["unknown_size"]:
        size += f" and what {answer['unknown_size']} of unknown size hold"
    done = (
        f"{answer['removed']} of {answer['count']} {REMOVED}" if answer["removing"] else f"{answer['count']} {WOULD_GO}"
    )
    return f"{answer['what']}: {done}, {size} by the runtime's figures"
