"""Man pages of all commands, made from the commands: what `--help` prints, in roff, one page each.

(click-man reads a group's list of commands, which a group that imports them when they are called does not have, and
leaves lines of a help text that begin with a dot to roff.)
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Iterator

import click

from monitor import __version__
from monitor.cli.main import COMMANDS, cli

SECTION = 8
_FILES = (
    ("/etc/default/outrace", "options of the service (OUTRACE_OPTIONS)"),
    ("/etc/outrace/outrace.yaml", "a configuration file, where --config names it"),
    ("/var/lib/outrace", "state of the service: incidents, pods that are known, graces and holds under way"),
    ("/run/outrace", "socket on which commands ask the daemon"),
    ("/sys/fs/bpf/outrace", "pinned BPF programs and maps"),
)


def pages(at: int) -> dict[str, str]:
    """Name (`outrace-config-show`) -> page, dated ``at`` (Unix seconds)."""
    date = time.strftime("%Y-%m-%d", time.gmtime(at))
    return {
        "-".join(path): "\n".join(_page(path, command, context, date)) + "\n"
        for path, command, context in commands(cli, ("outrace",), None)
    }


def commands(
    command: click.Command, path: tuple[str, ...], parent: click.Context | None
) -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    """This command and all below it, but hidden ones."""
    context = click.Context(command, info_name=path[-1], parent=parent, **command.context_settings)
    yield path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from commands(below, (*path, name), context)


def roff(text: str) -> str:
    """Text that roff prints as it is: a dot or an apostrophe at the beginning of a line would be a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\`").replace("^", "\\(ha").replace("~", "\\(ti")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def _page(path: tuple[str, ...], command: click.Command, context: click.Context, date: str) -> Iterator[str]:
    name = "-".join(path)
    short = COMMANDS[path[1]][1] if len(path) == 2 else command.get_short_help_str(200)
    yield f'.TH {roff(name.upper())} {SECTION} "{date}" "outrace {__version__}" "System administration"'
    yield ".SH NAME"
    yield f"{roff(name)} \\- {roff(short.rstrip('.'))}"
    yield ".SH SYNOPSIS"
    yield f".B {roff(' '.join(path))}"
    yield roff(" ".join(command.collect_usage_pieces(context)))
    if command.help:
        yield ".SH DESCRIPTION"
        yield from _paragraphs(command.help)
    records = [found for found in (one.get_help_record(context) for one in command.get_params(context)) if found]
    if records:
        yield ".SH OPTIONS"
        for option, text in records:
            yield from (".TP", f".B {roff(option)}", roff(text) or "\\&")
    if isinstance(command, click.Group):
        yield ".SH COMMANDS"
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None and not found.hidden:
                text = command.table[below][1] if hasattr(command, "table") else found.get_short_help_str(200)
                yield from (".TP", f".BR {roff(f'{name}-{below}')} ({SECTION})", roff(text))
    if command.epilog:
        yield ".SH NOTES"
        yield from _paragraphs(command.epilog)
    if len(path) == 1:
        yield ".SH FILES"
        for file, text in _FILES:
            yield from (".TP", f".I {roff(file)}", roff(text))
        yield ".SH ENVIRONMENT"
        yield roff("Each option of `outrace run` can be set by a variable: --eviction-hard by OUTRACE_EVICTION_HARD.")
    else:
        yield ".SH SEE ALSO"
        yield f".BR {roff('-'.join(path[:-1]))} ({SECTION})"


def _paragraphs(help_text: str) -> Iterator[str]:
    """Paragraphs are between empty lines; one that begins with a backspace (click's \\b) keeps its lines."""
    for number, paragraph in enumerate(inspect.cleandoc(help_text).split("\n\n")):
        if number:
            yield ".PP"
        if paragraph.startswith("\b"):
            yield from (".nf", roff(paragraph.lstrip("\b\n")), ".fi")
        else:
            yield roff(paragraph)
