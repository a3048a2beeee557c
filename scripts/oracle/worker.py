"""Runs commands of the tree in PYTHONPATH, each in a fork of this process: words in, what came of them out.

stdin: {"ask": [[words, ...], environment], ...], "model": bool}; stdout: {"done": [[code, out, err], ...], "options":
{command: {option: figures}}}. Only what users see is used of the tree: the command line, and click's model of it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Any

import click

from monitor.cli.main import cli, main

#: No question takes a tenth of this.
MOST_S = 120


def done(words: Sequence[str], environment: dict[str, str]) -> tuple[int, str, str]:
    """Exit code (a signal's is negative), stdout, stderr."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        pid = os.fork()
        if pid == 0:
            os.environ.update(environment)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            signal.alarm(MOST_S)
            os._exit(_called(words))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for file in (out, err):
            file.seek(0)
        return status, out.read(), err.read()


def _called(words: Sequence[str]) -> int:
    streams = [open(fd, "w", encoding="utf-8", closefd=False) for fd in (1, 2)]  # noqa: SIM115
    sys.stdout, sys.stderr = streams  # the names must not be the last references: main() wraps their buffers
    sys.argv = ["outrace", *words]
    try:
        code = main()
    except BaseException:  # noqa: BLE001 - what escapes is an answer too
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def options(command: click.Command, context: click.Context) -> dict[str, Any]:
    """Command -> option -> names, type, default; and so for the commands below it."""
    found: dict[str, Any] = {context.command_path: {_name(p): _figures(p) for p in command.get_params(context)}}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            found |= options(below, click.Context(below, info_name=name, parent=context))
    return found


def _name(parameter: click.Parameter) -> str:
    """As it is typed."""
    return max(parameter.opts, key=len, default="") or str(parameter.name)


def _figures(parameter: click.Parameter) -> dict[str, Any]:
    default = parameter.to_info_dict().get("default")
    shown = re.search(r"\[[^]]*\]$", getattr(parameter, "help", None) or "")
    kind = parameter.type.to_info_dict()
    return {
        "names": sorted([*parameter.opts, *parameter.secondary_opts]),
        "type": {key: value for key, value in kind.items() if isinstance(value, str | int | float | list | tuple)},
        "default": default if isinstance(default, str | int | float | list | None) else str(default),
        "shown": shown and shown[0],
        "required": parameter.required,
        "many": parameter.nargs != 1 or bool(getattr(parameter, "multiple", False)),
        "variable": parameter.envvar,
    }


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    model = options(cli, click.Context(cli, info_name="outrace"))  # it also imports every command, once for all forks
    answers = [done(words, environment) for words, environment in asked["ask"]]
    json.dump({"done": answers, "options": model}, sys.stdout)
