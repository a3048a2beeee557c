"""`outrace replay`: a recording through the same code, once more."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, cast

import click

from monitor import documents, owner
from monitor.cli.output import emit, format_amount, output_option, table_lines
from monitor.errors import EXIT_FAILURE, EXIT_OK, MonitorError
from monitor.race.incident import timestamp
from monitor.side.recording import Reader

if TYPE_CHECKING:
    from monitor.replay import Replayed

_GZIP = b"\x1f\x8b"


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@output_option
def replay(files: tuple[str, ...], output: str) -> int:
    """Decide and judge again what `outrace run --record FILE` recorded; `-` is stdin, and FILE.gz is read too.

    Rotated files are replayed together: outrace replay FILE.1 FILE. Exit code 1 if the recording is damaged, or if
    anything comes out otherwise than recorded.
    """
    from monitor.replay import replay

    with ExitStack() as stack:
        found = replay([Reader(opened(name, stack), name) for name in files])
    emit(output, found.to_json(), lambda: _lines(found))
    for first, count in found.gaps:
        click.echo(f"{count} records are missing from number {first} on: what they led to is not known", err=True)
    for each in found.differences:
        click.echo(
            f"outrace: error: {each['what']} of record {each['record']} came out otherwise: recorded "
            f"{each['recorded']}, replayed {each['replayed']}",
            err=True,
        )
    if found.damage is not None:
        click.echo(f"outrace: error: {found.damage}; what came before it was replayed", err=True)
    return EXIT_FAILURE if found.damage is not None or found.different else EXIT_OK


def opened(name: str, stack: ExitStack) -> IO[bytes]:
    """A file of a recording, `-` for stdin, unpacked if it is FILE.gz. Raises MonitorError."""
    if name == "-":
        return sys.stdin.buffer
    try:
        # A shell's <(...) has a writer; another FIFO may never have one.
        is_handed = owner.is_handed(name)
        file = stack.enter_context(open(name, "rb") if is_handed else documents.open_file(name))  # noqa: SIM115
        if file.peek(2)[:2] != _GZIP:
            return file
        import gzip

        return cast("IO[bytes]", stack.enter_context(gzip.open(file)))
    except OSError as error:
        raise MonitorError(
            f"{name}: {error.strerror or error}", "name a file that `outrace run --record FILE` wrote"
        ) from None


def _lines(found: Replayed) -> Iterator[str]:
    rows = [
        (
            timestamp(found.unix_ns(one["decided_ns"])),
            one["id"],
            one["signal"] or "a limit of its own",
            one["kind"],
            format_amount(one.get("available"), one["signal"]),
            format_amount(one.get("quantity"), one["signal"]),
            one["name"],
            "would evict" if one["observed"] else f"evict ({one['trigger']})",
        )
        for one in found.decisions
    ]
    yield from table_lines(("time", "id", "signal", "kind", "available", "threshold", "pod", "what"), rows)
    yield ""
    incidents = [(one["start"], one["verdict"], one["id"], one["summary"]) for one in found.incidents]
    yield from table_lines(("time", "verdict", "id", "summary"), incidents)
    yield ""
    skipped = f", {found.skipped} records before a state they could follow on" if found.skipped else ""
    yield (
        f"{found.passes} passes, {len(found.decisions)} decisions, {found.events} events, "
        f"{len(found.incidents)} incidents{skipped}"
    )
