"""The command `outrace`: finds the sub-command, imports only that one, turns errors into one line and an exit code."""

from __future__ import annotations

import errno
import importlib
import io
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TextIO

if sys.argv[1:2] == ["run"]:
    # Before anything else is imported (80 ms of CPU): see `monitor.kernel.sched.STARTING`, which takes an import too.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)

import click

from monitor import __version__
from monitor.errors import EXIT_FAILURE, EXIT_OK, MonitorError

#: name -> (module:attribute, short help). The help is here too, so that `--help` imports none of them.
BENCHES = {
    "latency": ("monitor.lab.bench_latency:latency", "Crossing to decision, crossing to SIGKILL."),
    "overhead": ("monitor.lab.bench_footprint:overhead", "What page faults cost with the programs attached."),
    "race": ("monitor.lab.bench_race:race", "Eviction against the OOM killer, margin by margin."),
    "footprint": ("monitor.lab.bench_footprint:footprint", "Memory, idle CPU and start-up time of the monitor itself."),
    "policy": ("monitor.lab.bench_policy:policy", "What a pass of the policy costs, from 10 to 5,000 pods."),
    "scenarios": ("monitor.lab.scenarios:scenarios", "Situations with a known truth: is every verdict right?"),
    "stall": ("monitor.lab.bench_stall:stall", "A pod that waits for memory: is its cause evicted, and no other?"),
    "peers": (
        "monitor.lab.bench_peers:peers",
        "Beside earlyoom, nohang and systemd-oomd, in a guest that may be lost.",
    ),
    "kills": ("monitor.lab.bench_kills:kills", "Races in which the monitor itself is killed: is anything lost?"),
}
COMMANDS = {
    "run": ("monitor.cli.run:run", "Watch memory pressure and decide evictions (the daemon)."),
    "demo": ("monitor.lab.bench_race:demo", "Build a small node out of a cgroup and run real races."),
    "doctor": ("monitor.cli.doctor:doctor", "Show what this kernel and these privileges allow."),
    "config": ("monitor.cli.config:config", "Show, check or translate the configuration."),
    "top": ("monitor.cli.top:top", "Show the node and its pods live."),
    "explain": ("monitor.cli.explain:explain", "Show which pod would be evicted next, and why or why not."),
    "incidents": ("monitor.cli.incidents:incidents", "Show the stored races: verdict, timeline, advice."),
    "reserve": ("monitor.cli.reserve:reserve", "Size a node: what it keeps back, what pods get, by which rule."),
    "evicted": ("monitor.cli.evicted:evicted", "List or delete Evicted pods left behind in the API server."),
    "replay": ("monitor.cli.replay:command", "Decide and judge again what `run --record` recorded."),
    "unload": ("monitor.cli.unload:unload", "Unpin the BPF programs, undo what a killed daemon left."),
    "conformance": ("monitor.cli.conformance:conformance", "Compare the policy with answers of a real kubelet."),
    "bench": ("monitor.cli.main:bench", "Measure on this machine."),
}
_RESERVE = "`outrace reserve --eviction-hard`, which shows the growth that a threshold survives"
#: Command or option that is gone -> what to use instead.
GONE = {
    "outrace config example": "`outrace run --help`; only the file has `services` and `stall`",
    "outrace config schema": "`outrace config check --config FILE`",
    "outrace daemons": "`outrace doctor`, which shows the daemon that runs here",
    "outrace reload": "`outrace config check` with the service's options, then `systemctl restart outrace`",
    "outrace cleanup": "`crictl rmi --prune`, `podman image prune` or `podman container prune`",
    "outrace evicted delete --retry": "`outrace evicted delete` without it: it tries again for a minute",
    "outrace evicted run": "`outrace evicted delete --yes` with the same options in a CronJob, as the chart has it",
    "outrace unload --force": "`outrace unload` after the daemon has ended",
    "outrace unload --strays": "`outrace unload`, with `--state-dir DIR` for one of those that `outrace doctor` lists",
    "outrace incidents export": "`list -o json` and `show -o json`; --state-dir reads a copy of the directory",
    "outrace incidents advise": _RESERVE,
    **{
        f"outrace replay --{name}": _RESERVE
        for name in ("policy", *(f"eviction-{key}" for key in ("hard", "soft", "soft-grace-period", "minimum-reclaim")))
    },
    "outrace reserve --growth": _RESERVE,
    "outrace explain --signal": "`outrace explain` without it: the order is the same for every signal of memory",
    "outrace report": "`outrace incidents list --since 7d`",
    "outrace demo --mode": "`outrace bench race --mode hold`, which races every load",
    "outrace bench race --hooks": "`outrace demo --hooks NAME --margin SIZE`, for each hook",
    "outrace bench race --watch": "`outrace bench race --mode hold`, which watches each hold for a second",
}


#: A colour (click.style), or one character but the ends of lines and fields.
_UNPRINTABLE = re.compile(r"\x1b\[[0-9;]*m|[^\n\t]")


class Harmless(io.TextIOWrapper):
    """Text in which nothing but a colour, and a return at its very beginning (progress), acts on a terminal: the rest
    is in names that others chose. It becomes ``\\u001b``, which means the same in JSON.
    """

    def write(self, text: str, /) -> int:
        if not text.isprintable():
            text = _UNPRINTABLE.sub(_harmless, text)
        return super().write(text)

    @classmethod
    def instead_of(cls, stream: TextIO) -> TextIO:
        """The stream, made harmless where it is one of the interpreter's own."""
        if type(stream) is not io.TextIOWrapper:
            return stream
        encoding, errors = stream.encoding, stream.errors
        lines, through = stream.line_buffering, stream.write_through
        return cls(stream.buffer, encoding, errors, line_buffering=lines, write_through=through)


def _harmless(found: re.Match[str]) -> str:
    text = found[0]
    kept = len(text) > 1 or text.isprintable() or (text == "\r" and not found.start())
    return text if kept else f"\\u{ord(text):04x}"


class Group(click.Group):
    """A group that names what there is instead of a command that is gone."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if instead := GONE.get(path := f"{ctx.command_path} {cmd_name}"):
            raise click.UsageError(f"`{path}` is gone: use {instead}", ctx)
        return super().get_command(ctx, cmd_name)


class LazyGroup(Group):
    """A group that imports the module of a command when that command is called."""

    def __init__(self, *, table: Mapping[str, tuple[str, str]], **rest: object) -> None:
        super().__init__(**rest)  # type: ignore[arg-type]  # click's own keyword arguments, passed through
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])


def _version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from monitor.cli.doctor import bcc_version

        bcc = bcc_version()
        click.echo(f"outrace {__version__} (bcc {bcc or 'not installed'}, kernel {platform.release()})")
        ctx.exit()


_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings=_HELP,
    epilog="Exit codes: 0 ok, 1 failure, 2 usage, 3 this machine cannot, 4 findings where a check was asked, "
    "5 a hook of the daemon failed: started again, it polls.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def cli() -> None:
    """See memory pressure in microseconds and evict before the OOM killer fires."""


@click.group(cls=LazyGroup, table=BENCHES)
def bench() -> None:
    """Measure on this machine; needs root."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. A command may return its own as an int."""
    sys.stdout, sys.stderr = Harmless.instead_of(sys.stdout), Harmless.instead_of(sys.stderr)
    try:
        result = cli.main(
            args=None if arguments is None else list(arguments), prog_name="outrace", standalone_mode=False
        )
        # Flushed here, where a closed pipe can be handled, rather than while the interpreter shuts down.
        if sys.stdout is not None:  # `>&-`
            sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        return _refused(_usage(error), error.exit_code)
    except MonitorError as error:
        return _refused(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except OSError as error:
        closed, full = isinstance(error, BrokenPipeError), error.errno == errno.ENOSPC and error.filename is None
        if not closed and not full:
            raise
        # The reader (`head`) has seen enough, or the disk is full: what is buffered must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _refused(f"stdout: {error.strerror}", EXIT_FAILURE) if full else EXIT_FAILURE
    return result if isinstance(result, int) else EXIT_OK


def _usage(error: click.ClickException) -> str:
    """What is wrong with the command line, and where it says what may be written."""
    context = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption):
        from monitor.settings.options import GONE_OPTIONS

        if instead := GONE_OPTIONS.get(error.option_name.removeprefix("--").removeprefix("no-")):
            return f"{error.option_name} is gone: {instead}"
        if context is not None and (instead := GONE.get(path := f"{context.command_path} {error.option_name}")):
            return f"`{path}` is gone: use {instead}"
    path = f"`{context.command_path} --help`" if context is not None else "--help"
    remedy = f"; see {path}" if isinstance(error, click.UsageError) else ""
    return error.format_message().rstrip(".") + remedy


def _refused(problem: str, code: int) -> int:
    """One line, also of what was given over several; the exit code."""
    click.echo(f"outrace: error: {' '.join(problem.split())}", err=True)
    return code


if __name__ == "__main__":
    # As `monitor.cli.main`, not `__main__`, so that the group `bench` is found in the module that runs.
    sys.exit(importlib.import_module("monitor.cli.main").main())
