"""Every command in the documents is one that exists, with these options and values.

A fenced block without a language is a shell's input: each of its lines that begins with a program is a command. In a
block of `console` only what follows the prompt (`# `, `$ `) is one, the rest is output; `text` has none.
"""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

from monitor.cli.main import COMMANDS, cli
from monitor.settings.options import NUMBER, OPTIONS, TEXTS

ROOT = Path(__file__).resolve().parents[2]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Each changes nothing, and is run as it is written.
READS_ONLY = re.compile(
    r"outrace (?:reserve .*--memory .*|config (?:show|check)|doctor|top --once|explain"
    r"|incidents list(?: .*\d.*)?)"
)
#: Placeholders and files of the reader's machine.
OF_A_READER = re.compile(r"\.\.\.|\b[A-Z]{3,}\b|[ =]/")
OF_RUN = {option.name: option for option in OPTIONS if option.metavar}
#: What `make TARGET ARGS=...` hands its arguments to.
TARGETS = {"run": ["run"], "demo": ["demo"]}

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:outrace|make) [^`]+)`")
#: Stands for what a user puts there: ID, FILE.jsonl, NAMESPACE/POD, DIR, HOST:PORT, `...`.
PLACEHOLDER = re.compile(r"(?:[A-Z]+|.*\.\.\.)(?:[./:=-].*)?")

#: A file or directory of the reader's machine.
ON_A_NODE = re.compile(r"(?:manifests:)?/")

OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*\w")
#: Where options are defined that are not of outrace: the kubelet's about eviction, `make test-vm`'s and
#: `make mutation`'s and pytest's.
DEFINED = (
    "monitor/policy/translate.py",
    "scripts/vm/matrix.py",
    "scripts/mutate.py",
    "tests/conftest.py",
)
OTHERS = {
    *("--field-selector", "--raw", "--subresource", "--bound-object-kind"),  # kubectl
    *("--force", "--memory-reservation", "--now", "--prune", "--rm"),  # docker, systemctl, crictl, podman
    *("--scope", "--user"),  # systemd-run, systemctl
    *("--hostname-override", "--cert-dir", "--config-dir", "--oom-score-adj"),  # other flags of a kubelet
    "--node-status-update-frequency",
    *("--eviction", "--leader-elect", "--kubelet-arg", "--root-dir"),  # `--eviction-*`, `--leader-elect-...`; k3s
    *("--status-taint", "--terminated-pod-gc-threshold"),  # cluster-autoscaler, kube-controller-manager
}


class NotACommandError(Exception):
    """The command is none, or has an option or a value that it does not take."""


def alternatives(command: str) -> list[str]:
    """`list|show ID` and `[--since 1h|TIME]` of a synopsis: each way to write it."""
    command = re.sub(r"\[([^][]*)\]", r"\1", command)
    found = re.search(r"(?<![\s'\"<|])[^\s|'\"]*\|[^\s'\"]+(?=\s|$)", command)
    if not found:
        return [command]
    word = re.search(r"\S*$", command[: found.start()])
    start = word.start() if word else found.start()
    choices = command[start : found.end()].split("|")
    return [one for each in choices for one in alternatives(command[:start] + each + command[found.end() :])]


def split(line: str) -> Iterator[list[str]]:
    """The commands of a line of shell, without comments, redirections and environment."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    command: list[str] = []
    skip = False
    for word in words:
        if re.fullmatch(r"[;|&()]+", word):
            yield command
            command = []
        elif re.fullmatch(r"[<>]+", word):
            skip = True
        elif skip:
            skip = False
        elif command or not re.match(r"sudo$|[A-Z_]+=", word):
            command.append(word)
    yield command


def commands(text: str) -> Iterator[str]:
    """Each command of outrace and each `make` of a document, as it is written."""
    for language, block in FENCE.findall(text):
        if options := re.search(r'^OUTRACE_OPTIONS="(.*)"$', block, re.MULTILINE):
            yield shlex.join(["outrace", "run", *shlex.split(options[1])])
        for line in block.replace("\\\n", " ").splitlines():
            prompt = re.match(r"[#$] (.*)", line)
            shown = (prompt[1] if prompt else "") if language == "console" else prompt[1] if prompt else line
            shown = re.sub(r"^kubectl .* exec \S+ -- ", "", shown)
            if language in ("", "sh", "console") and re.match(r"(?:sudo )?(?:outrace|make) ", shown):
                yield shown
    for command in INLINE.findall(FENCE.sub("", text)):
        yield " ".join(command.split())


def check_values(command: click.Command, values: dict[str, object], ctx: click.Context) -> None:
    """Raises click.UsageError or NotACommandError for a value that an option does not take; no file is opened."""
    for param in command.params:
        given = values.get(param.name or "")
        texts = [one for one in (given if isinstance(given, list | tuple) else [given]) if isinstance(one, str)]
        if any(PLACEHOLDER.fullmatch(text) or ON_A_NODE.match(text) for text in texts):
            continue
        for text in texts:
            param.type.convert(text, param, ctx)
        own = OF_RUN.get((param.name or "").replace("_", "-"))
        if texts and own and isinstance(param, click.Option) and param.metavar == own.metavar:
            try:
                own.parse(texts if own.kind == TEXTS else int(texts[0]) if own.kind == NUMBER else texts[0])
            except ValueError as error:
                raise NotACommandError(f"{param.opts[0]}: {error}") from error


def check_outrace(words: list[str]) -> None:
    """Raises NotACommandError. What is missing is no error: a document may name a command without its arguments, and
    an option without its value.
    """
    command: click.Command = cli
    ctx = click.Context(command, info_name="outrace")
    try:
        while True:
            values, rest, _ = command.make_parser(ctx).parse_args(list(words))
            check_values(command, values, ctx)
            if not isinstance(command, click.Group) or not rest:
                break
            name, words = rest[0], rest[1:]
            found = command.get_command(ctx, name)
            if found is None:
                raise NotACommandError(f"no command {name!r}")
            command, ctx = found, click.Context(found, parent=ctx, info_name=name)
    except click.BadOptionUsage as error:
        if not words[-1].startswith("--") or not error.message.endswith("requires an argument."):
            raise NotACommandError(error.format_message()) from error
        return
    except click.UsageError as error:
        raise NotACommandError(error.format_message()) from error
    if rest and not PLACEHOLDER.fullmatch(rest[0]):
        raise NotACommandError(f"unexpected: {' '.join(rest)}")


def check_make(words: list[str]) -> None:
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for word in words:
        if not re.match(r"[A-Z]+=", word) and word not in targets:
            raise NotACommandError(f"no target {word!r}")
    for target, before in TARGETS.items():
        for word in words if target in words else ():
            if word.startswith("ARGS="):
                check_outrace([*before, *split_arguments(word)])


def split_arguments(word: str) -> list[str]:
    return re.split(r"\s+", word.removeprefix("ARGS=").strip())


def bad(text: str) -> Iterator[str]:
    for written in commands(text):
        for line in alternatives(written):
            for words in split(line):
                check = {"outrace": check_outrace, "make": check_make}.get(words[0] if words else "")
                try:
                    if check:
                        check(words[1:])
                except NotACommandError as error:
                    yield f"{written}: {error}"


def own_options(command: click.Command, ctx: click.Context) -> Iterator[str]:
    for param in command.params:
        if isinstance(param, click.Option):
            yield from (*param.opts, *param.secondary_opts)
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            found = command.get_command(ctx, name)
            assert found is not None
            yield from own_options(found, click.Context(found, parent=ctx, info_name=name))


@cache
def known_options() -> frozenset[str]:
    words = re.findall(r"[a-z][\w-]+", " ".join((ROOT / path).read_text() for path in DEFINED))
    of_others = {f"--{word}" for word in words} | OTHERS | {"--help"}
    return frozenset(of_others | set(own_options(cli, click.Context(cli))))


def unknown_options(text: str) -> Iterator[str]:
    for span in re.findall(r"`([^`]+)`", FENCE.sub("", text)):
        yield from (f"no option {option}" for option in OPTION.findall(span) if option not in known_options())


def harmless() -> list[str]:
    """Commands of the documents that only read, as they are written: tests/test_checks.py runs them."""
    every = {line.partition(" #")[0].strip() for path in DOCS for line in commands(path.read_text())}
    whole = {one.strip() for line in every for one in alternatives(line)}
    return sorted(line for line in whole if READS_ONLY.fullmatch(line) and not OF_A_READER.search(line))


def complaints() -> Iterator[str]:
    every = ""
    for path in DOCS:
        text = path.read_text()
        yield from (f"{path.relative_to(ROOT)}: {found}" for found in (*bad(text), *unknown_options(text)))
        every += "\n".join(commands(text)) + "\n"
    yield from (f"docs: `outrace {name}` is in no document" for name in COMMANDS if f"outrace {name}" not in every)
