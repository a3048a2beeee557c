"""`outrace config show|check|translate`: what is in force, what bites in it, old flags."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click

from monitor.cli.daemons import choose_daemon, no_daemon_option
from monitor.cli.main import Group
from monitor.cli.options import as_settled, configuration_options, resolve_here, with_disks
from monitor.cli.output import Columns, amount_of, emit, output_option, table, yaml_lines
from monitor.documents import UnreadableError
from monitor.errors import EXIT_FINDINGS, EXIT_OK, ConfigError
from monitor.kernel import cgroupfs, disks, meminfo
from monitor.kernel.procfs import Process
from monitor.owner import ChangeableError, program
from monitor.pods.installations import words as split
from monitor.pods.spec import SERVICES
from monitor.policy import signals
from monitor.policy.configuration import DEFAULT, ENFORCE, HARD, SOFT, TEXT_MAPS, Given, Settings, Source
from monitor.policy.errors import PolicyError
from monitor.policy.findings import Node, findings
from monitor.policy.layout import DiskLayout
from monitor.policy.releases import era
from monitor.policy.thresholds import OFF
from monitor.policy.translate import KIND
from monitor.policy.translate import translate as to_configuration
from monitor.settings.config import RunConfig
from monitor.settings.files import read_text, refuse_misspelt, value
from monitor.settings.options import FEATURE_GATES, KUBELET_KEYS, SETTINGS
from monitor.settings.read import Resolved, check_enforced, resolved_again, value_of
from monitor.settings.read import resolve as resolve_settings

#: Shown as thresholds, not among the other settings; a recording cannot be asked for.
_NOT_LISTED = ("eviction-hard", "eviction-soft", "eviction-soft-grace-period", "eviction-minimum-reclaim", "record")
_NS = 10**9
#: Signals whose thresholds count where services are pods.
_OF_SERVICES = {*signals.OF_DOMAIN["node"], signals.PID}


@click.group(cls=Group)
def config() -> None:
    """Show, check or translate the configuration."""


@config.command()
@configuration_options
@no_daemon_option
@output_option
def show(output: str, no_daemon: bool, **options: Any) -> None:
    """Print every threshold and setting in force with its origin.

    Without options: those of the running daemon, even where a file has changed since it started. With options,
    with --no-daemon, or where no daemon runs: what `outrace run` would have with them.
    """
    # A configuration is no measurement, and scripts read it before a daemon runs.
    without = "" if output == "json" else "this is what `outrace run` would have"
    found = choose_daemon(options, no_daemon, without)
    resolved, node = _read(options) if found is None else _measured(resolved_again(found.config))
    rows = list(_thresholds(resolved, node))
    settings = list(_settings(resolved))
    answer = {"thresholds": rows, "settings": settings, "warnings": _warnings(resolved, node)}
    whose = {} if found is None else {"daemon": found.to_json()}
    emit(output, whose | answer, lambda: [*([] if found is None else [f"daemon {found}", ""]), *_lines(answer)])


_COLUMNS: Columns = {
    "signal": "signal",
    "kind": "kind",
    "value": "value",
    "quantity": amount_of("quantity"),
    "capacity": amount_of("capacity"),
    "grace": lambda row: f"{row['grace_s']}s" if row["grace_s"] else None,
    "min reclaim": "min_reclaim",
    "origin": "origin",
}


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    yield from table(_COLUMNS, answer["thresholds"])
    yield ""
    columns: Columns = {"setting": "name", "value": lambda row: _shown(row["value"]), "origin": "origin"}
    yield from table(columns, answer["settings"])
    yield from ("", *(f"warning: {warning}" for warning in answer["warnings"])) if answer["warnings"] else ()


@config.command()
@configuration_options
@output_option
def check(output: str, **options: Any) -> int:
    """Check a configuration for errors and surprises. Exit 0 if nothing, 4 for warnings, 2 for errors."""
    warnings = _warnings(*_read(options))
    emit(output, {"warnings": warnings}, lambda: [f"warning: {warning}" for warning in warnings])
    return EXIT_FINDINGS if warnings else EXIT_OK


@config.command(context_settings={"ignore_unknown_options": True})
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="FILE",
    help="Read kubelet flags, or a KubeletConfiguration that flags override.",
)
@click.option("--pid", type=click.IntRange(min=1), metavar="PID",
              help="Read the command line of this kubelet, k3s or RKE2.")  # fmt: skip
@output_option
def translate(flags: tuple[str, ...], files: tuple[str, ...], pid: int | None, output: str) -> None:
    """Turn old kubelet FLAGS into a KubeletConfiguration: outrace config translate -- --eviction-hard=...

    The configuration goes to stdout as YAML; notes on what could not simply be carried over go to stderr.
    """
    if not flags and not files and pid is None:
        problem = "Nothing to translate: give flags of a kubelet after --, --file or --pid"
        raise click.UsageError(problem, click.get_current_context())
    try:
        words, fields = of_files(files)
        words += of_process(pid) if pid is not None else []
        words += of_command_line(flags)
        made = to_configuration([word.text for word in words], [word.origin for word in words])
    except PolicyError as error:
        raise ConfigError(str(error)) from None
    head = {key: made.configuration[key] for key in ("apiVersion", "kind")}
    origins = {key: given.origin for key, given in fields.items() if key not in made.configuration}
    made = made._replace(configuration=head | _over(fields, made.configuration))
    if made.configuration == head:
        problem = f"the configuration would be empty: {'; '.join(made.notes) or 'no field is given'}"
        raise ConfigError(problem, "a kubelet with these flags alone has its defaults, as `outrace config show` has")
    try:
        _check_translated(made.configuration, origins)
    except ConfigError as error:
        flag = re.match(r"--([\w-]+):", error.message)
        if flag and flag[1] in made.origins:
            raise ConfigError(f"{made.origins[flag[1]]}: {error.message}", error.remedy) from None
        raise
    answer = {"configuration": made.configuration, "notes": made.notes}
    emit(output, answer, lambda: yaml_lines(made.configuration))
    for note in made.notes if output == "table" else ():
        click.echo(f"note: {note}", err=True)


def _over(files: Mapping[str, Given], flags: Mapping[str, Any]) -> dict[str, Any]:
    """What flags make over the fields of files. As in a kubelet a map is replaced, but gates are merged."""
    fields = {key: given.value for key, given in files.items()}
    gates, more = fields.get(FEATURE_GATES), flags.get(FEATURE_GATES, {})
    return {**fields, **flags, **({FEATURE_GATES: gates | more} if isinstance(gates, dict) else {})}


def _check_translated(configuration: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Refuse what `outrace run --kubelet-config` would, in the names of the flags, or by the ``origins`` of keys."""
    options = {s.name: Given(configuration[s.kubelet_key], origins.get(s.kubelet_key, f"--{s.name}")) for s in SETTINGS
            if s.kubelet_key in configuration}  # fmt: skip
    resolve_settings(options)
    resolve_settings({}, Source("translated flags", configuration))


def _read(options: Mapping[str, Any]) -> tuple[Resolved, Node]:
    """The configuration with the layout of this node's disks, and what is known of the node."""
    resolved = resolve_here(options)
    check_enforced(resolved.config)
    return _measured(resolved)


def _measured(resolved: Resolved) -> tuple[Resolved, Node]:
    """A configuration with the layout of this node's disks, and what is known of the node."""
    run_config, found = with_disks(resolved.config)
    capacity, huge_pages = _memory(run_config)
    capacity[signals.PID] = disks.pid_counts()[0]
    # Only what was named is measured, and what is on the same file system.
    named = {os.stat(path).st_dev for path in (run_config.nodefs, run_config.imagefs) if path is not None}
    for path, (space, inodes) in zip((found.nodefs, found.imagefs, found.imagefs), signals.OF_DISK, strict=True):
        measured = disks.file_system(path) if os.stat(path).st_dev in named else None
        if measured is not None:
            capacity[space] = measured.capacity
            if measured.inodes is not None:
                capacity[inodes] = measured.inodes
    layout = DiskLayout(run_config.layout_image_fs)
    return resolved._replace(config=run_config), Node(capacity, layout, huge_pages)


def _memory(run_config: RunConfig) -> tuple[dict[str, int], int]:
    """Bytes of the node and of its pods (of kubepods without a limit of its own); and of the machine's huge pages."""
    memory = meminfo.MemTotal()
    total, huge_pages = memory.now(), memory.huge_pages()
    if run_config.node_cgroup is not None:
        total = cgroupfs.limit(cgroupfs.resolve(cgroupfs.detect(), run_config.node_cgroup)) or total
        huge_pages = 0
    kept = run_config.reserved if "pods" in run_config.enforce_node_allocatable else 0
    apart = huge_pages if run_config.huge_pages_apart else 0
    capacity = {signals.MEMORY: total - apart, signals.ALLOCATABLE_MEMORY: max(0, total - kept)}
    return {signal: capacity[kubelets] for signal, kubelets in signals.KUBELETS.items()}, huge_pages


def _thresholds(resolved: Resolved, node: Node) -> Iterator[dict[str, Any]]:
    """Those that are compared: where services are pods, not those of disks."""
    acted_on = {threshold.signal for threshold in as_settled(resolved.config).thresholds()}
    for e in resolved.settings.thresholds(era(resolved.config.policy), node.layout):
        t = e.threshold
        if t.signal not in acted_on:
            continue
        capacity = node.capacity.get(t.signal)
        known = capacity is not None or t.value.quantity is not None
        yield {
            "signal": t.signal,
            "kind": "hard" if t.hard else "soft",
            "value": e.text,
            "quantity": t.quantity(capacity or 0) if known else None,
            "capacity": capacity,
            "grace_s": t.grace_ns / _NS if t.grace_ns % _NS else t.grace_ns // _NS,
            "min_reclaim": e.min_reclaim,
            "origin": e.origin,
        }


def _settings(resolved: Resolved) -> Iterator[dict[str, Any]]:
    run_config = resolved.config
    for s in SETTINGS:
        if s.name in _NOT_LISTED:
            continue
        value = value_of(run_config, s)
        if s.kubelet_key in TEXT_MAPS:
            value = resolved.settings.texts(s.kubelet_key)
        elif s.field.endswith("_ns"):
            value = f"{value / _NS:g}s"
        yield {"name": s.name, "value": value, "origin": run_config.origins[s.field]}


def _shown(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        value = ",".join(f"{key}={text}" for key, text in value.items())
    elif isinstance(value, tuple):
        value = " ".join(value)
    return None if value in (None, "") else str(value)


def _warnings(resolved: Resolved, node: Node) -> list[str]:
    run_config = resolved.config
    services = as_settled(run_config).pods == SERVICES
    settings = _of_services(resolved.settings) if services else resolved.settings
    found = findings(settings, node, era(run_config.policy))
    return [*found, *(_without_effect(resolved) if services else ()), *_commands(run_config)]


def _of_services(settings: Settings) -> Settings:
    """Without what surprises only a kubelet: outrace acts on no threshold of disks or kubepods there."""
    gone = (signals.CONTAINERFS, signals.CONTAINERFS_INODES)
    maps = {
        key: {name: given for name, given in entries.items() if name not in gone}
        for key, entries in settings.maps.items()
    }
    off = {signal: why for signal, why in settings.switched_off.items() if signal in _OF_SERVICES}
    values = {**settings.values, ENFORCE: Given((), DEFAULT)}  # nor is there a kubepods to copy a threshold for
    return dataclasses.replace(settings, maps=maps, values=values, switched_off=off)


def _without_effect(resolved: Resolved) -> Iterator[str]:
    """Outrace's own thresholds on which it does not act where services are pods."""
    for kind in (HARD, SOFT):
        for signal, (text, origin) in resolved.settings.maps[kind].items():
            # What a kubelet's file says is for the kubelet.
            if signal in _OF_SERVICES or text in OFF or origin.startswith(DEFAULT) or origin.endswith(f": {kind}"):
                continue
            of_disk = signals.CONDITION[signal] == signals.DISK_PRESSURE
            why = "no service is killed for a disk, its files would stay" if of_disk else "there is no kubepods cgroup"
            yield f"{origin}: {signal}: has no effect: {why}"


def _commands(run_config: RunConfig) -> Iterator[str]:
    """What is wrong with the command for cleaning up, as far as this machine knows."""
    if not run_config.reclaim_images:
        return
    origin, name = run_config.origins["reclaim_images"], run_config.reclaim_images[0]
    try:
        program(name)
    except ChangeableError as error:
        yield f"{origin}: {error}"
    except OSError:
        yield f"{origin}: {name}: no such command here; install it, or name it with its path"
    if not run_config.enforce:
        yield f"{origin}: nothing is cleaned up while observing; it takes effect with --enforce"


# What `outrace config translate` is given beside flags: a file of flags, a configuration, a process.


_REMEDY = (
    "give the kubelet's command line after --, or --pid PID; `systemctl show -p ExecStart kubelet` has it; give each "
    "kubelet-arg of k3s or RKE2 (config.yaml too) as --kubelet-arg=FLAG=VALUE"
)
_NAME_IT = "name the pid of the kubelet (pgrep -u root kubelet)"
#: Bytes of a command line: more than any kubelet has (a k3s server with 200 flags: 20 KiB).
_MOST = 1 << 20
#: Characters of a line: shlex takes 10 s for one of 900 kB.
_LONGEST = 1 << 16
#: What starts a kubelet in its own process, with the kubelet's flags in arguments of its own.
_EMBEDDING, _WRAPPED = ("k3s", "rke2"), "--kubelet-arg"
#: What MicroK8s' kubelite is given.
_ARGS_FILE = "--kubelet-args-file="
#: A line of a map in YAML or JSON.
_IS_CONFIGURATION = re.compile(r"""^(?:["']?kind["']?[ \t]*:|[ \t]*\{)""", re.MULTILINE)


class Word(NamedTuple):
    """A word of a command line, and where it was written."""

    text: str
    origin: str


def of_files(paths: Sequence[str]) -> tuple[list[Word], dict[str, Given]]:
    """The flags in these files, and the fields of a KubeletConfiguration. Raises ConfigError and PolicyError."""
    words, fields = list[Word](), dict[str, Given]()
    for path in paths:
        text = read_text(path, "name a file with the kubelet's flags")
        found = _configuration(path, text)
        if found is None:
            words += _flags(path, text)
        else:
            fields |= {key: Given(one, f"{path}: {key}") for key, one in found.items()}
    return words, fields


def of_process(pid: int) -> list[Word]:
    """The flags of the kubelet that runs as this process, or in it (k3s, RKE2). Raises ConfigError.

    A process of another user is refused before its arguments are read: any user may call one kubelet, and lay its
    arguments in memory that is endless or answers no read (prctl PR_SET_MM_MAP, a FUSE mount).
    """
    try:
        with Process(pid) as process:
            if others := process.users() - {0, os.geteuid()}:
                raise ConfigError(f"--pid {pid}: is a process of user {min(others)}", _NAME_IT)
            return of_arguments(pid, os.fsdecode(process.arguments(_MOST)).rstrip("\0").split("\0"))
    except OSError as error:
        raise ConfigError(f"--pid {pid}: {error.strerror}", _NAME_IT) from None


def of_arguments(pid: int, texts: Sequence[str]) -> list[Word]:
    """The flags of a kubelet with this command line. Raises ConfigError."""
    words = [Word(text, f"process {pid}: word {number}") for number, text in enumerate(texts, 1)]
    return _kubelets(f"--pid {pid}", words)


def of_command_line(texts: Sequence[str]) -> list[Word]:
    """The flags that were typed after --, with or without the kubelet before them. Raises ConfigError."""
    words = [Word(text, "") for text in texts]
    return _kubelets("--", words) if texts and texts[0][:1] != "-" else list(_unwrapped(words))


def _kubelets(where: str, words: Sequence[Word]) -> list[Word]:
    names = [word.text.rpartition("/")[2] for word in words]
    if found := next((word.text for word in words if word.text.startswith(_ARGS_FILE)), ""):
        raise ConfigError(f"{where}: {names[0]!r} has the flags in a file", f"give --file {found[len(_ARGS_FILE) :]}")
    if "kubelet" in names[:2]:
        return list(words[names.index("kubelet") + 1 :])
    if names[0].split(" ")[0] not in _EMBEDDING:
        raise ConfigError(f"{where}: {names[0]!r} is no kubelet", _NAME_IT if where != "--" else _REMEDY)
    if flags := list(_unwrapped(words[1:], others=False)):
        return flags
    raise ConfigError(f"{where}: {names[0]!r} has no --kubelet-arg, and its config.yaml was not read", _REMEDY)


def _unwrapped(words: Iterable[Word], others: bool = True) -> Iterator[Word]:
    """``--kubelet-arg=eviction-hard=...`` of k3s as the kubelet's flag; without k3s' own flags if not ``others``."""
    rest = iter(words)
    for word in rest:
        name, equals, value = word.text.partition("=")
        if name == _WRAPPED:
            value = value if equals else next(rest, Word("", "")).text
            yield Word(f"--{value.removeprefix('--')}", word.origin)
        elif others:
            yield word


def _configuration(path: str, text: str) -> Mapping[str, Any] | None:
    """The fields of a KubeletConfiguration, also as a kubelet answers /configz; None for what is none."""
    if not _IS_CONFIGURATION.search(text):
        return None
    try:
        found = value(text)
    except UnreadableError as error:
        raise ConfigError(f"{path}: {error}") from None
    if isinstance(found, dict) and isinstance(inner := found.get("kubeletconfig"), dict):
        found = {"kind": KIND, **inner}
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise ConfigError(f"{path}: is no {KIND}", _REMEDY)
    refuse_misspelt(path, found, KUBELET_KEYS)
    return {key: one for key, one in found.items() if key not in ("apiVersion", "kind") and one is not None}


def _flags(path: str, text: str) -> list[Word]:
    """The flags of a file, each line split as by a shell. Raises PolicyError."""
    words = list[Word]()
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        origin = f"{path}:{number}"
        if len(line) > _LONGEST:
            raise PolicyError(f"{origin}: {len(line)} characters, where {_LONGEST} are the most; give a kubelet's own")
        if line and line[0] not in "#-":
            raise PolicyError(f"{origin}: does not begin with a flag of the kubelet; {_REMEDY}")
        try:
            words += [Word(one, origin) for one in split(line)] if line[:1] == "-" else []
        except ValueError:
            raise PolicyError(f"{origin}: {re.split('[= ]', line)[0]}: a quote or \\ is not closed") from None
    if not words:
        raise PolicyError(f"{path}: holds no flag; {_REMEDY}")
    return list(_unwrapped(words))
