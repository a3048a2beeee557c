"""The command line of a kubelet out of what a node has on disk: units and drop-ins, environment files, commands.

Each word keeps the file and line it was written in. Files are read as systemd and shells read them: line continuations,
quotes, escapes, `$NAME` and `${NAME}`, `Environment=` and `EnvironmentFile=`, an empty `ExecStart=` that begins anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from monitor.policy.errors import PolicyError
from monitor.policy.unit_words import (
    OPEN_QUOTE,
    VARIABLE,
    OpenQuoteError,
    Text,
    Word,
    Written,
    command_words,
    joined_lines,
    pieces,
    words_of,
)

#: The file that an ``EnvironmentFile=`` names, None where there is none.
Reader = Callable[[str], Written | None]
_SECTION = re.compile(r"\[[\w -]+\]\s*(?:[#;].*)?$")
#: `X-Snappy` and the like are for other programs than systemd.
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_STARTS = re.compile(r"(?:^|[\s/])(?:kubelet|k3s|rke2)(?=\s|$|')")
_NAME = re.compile(r"[A-Za-z_]\w*")
#: What starts a kubelet in its own process, with the kubelet's flags in arguments of its own.
_EMBEDDING = ("k3s", "rke2")


def command_line(files: Sequence[Written], read: Reader) -> tuple[list[Word], list[str]]:
    """The kubelet's flags that these files make together, in the order systemd reads them, and notes.

    Raises PolicyError: one line with file, line, key and remedy.
    """
    node = _Node(read)
    for file in files:
        node.add(file)
    words = node.flags()
    if files and not (words or node.commands or node.notes):
        node.notes.append(
            f"{', '.join(file.name for file in files)}: no command line of a kubelet, and no flags of one"
        )
    return words, node.notes


class _Node:
    """What has been read of the files so far."""

    def __init__(self, read: Reader) -> None:
        self.read = read
        self.notes: list[str] = []
        self.commands: list[Text] = []
        self.own: dict[str, Text] = {}  # Environment=
        self.from_files: dict[str, Text] = {}  # EnvironmentFile= has the last word, wherever it stands
        self.shell: list[Word] = []

    def add(self, file: Written) -> None:
        if "\0" in file.text:  # /proc/PID/cmdline
            words = [
                Word(text, f"{file.name}: word {n}") for n, text in enumerate(file.text.rstrip("\0").split("\0"), 1)
            ]
            self.shell += _flags_of(words)
            return
        lines = [line.strip() for line in file.text.splitlines()]
        filled = [line for line in lines if line and line[0] not in "#;"]
        if not filled:
            self.notes.append(f"{file.name}: holds nothing")
        elif any(_SECTION.match(line) for line in filled):
            self._unit(file)
        elif re.match(r"(?:export\s+)?\w+\s*=", filled[0]) and not file.text.startswith("#!"):
            self.from_files |= _environment(file)
        else:
            self._commands(file)

    def _commands(self, file: Written) -> None:
        """A command line, or a script that has one among others."""
        lines = list(joined_lines(file, comments="#", glue=""))
        mine = [line for line in lines if line.text.startswith("-") or _STARTS.search(line.text)] or lines
        for line in mine:
            self.shell += _flags_of(list(command_words(line, by_shell=True)))
        if others := [line.origin for line in lines if line not in mine]:
            more = f" (nor {len(others) - 1} more)" if len(others) > 1 else ""
            self.notes.append(f"{others[0]}: starts no kubelet, and is not read{more}")

    def _unit(self, file: Written) -> None:
        section = ""
        for line in joined_lines(file, comments="#;", glue=" "):
            if _SECTION.match(line.text):
                section = line.text[1 : line.text.index("]")]
                continue
            key, equals, _ = line.text.partition("=")
            if not equals or not _KEY.fullmatch(key.strip()):
                raise PolicyError(
                    f"{line.origin}: {line.text[:40]!r} is neither [SECTION] nor KEY=VALUE; a line that goes on "
                    r"needs a \ at the end of the one before, with nothing after it"
                )
            at = len(key) + 1
            value = line.part(at + len(line.text[at:]) - len(line.text[at:].lstrip()))
            if section == "Service":
                self._setting(key.strip(), value, line.origin)

    def _setting(self, key: str, value: Text, origin: str) -> None:
        if key == "ExecStart":
            self.commands = [*self.commands, value] if value.text else []
        elif key == "Environment":
            if not value.text:
                self.own = {}
            for word in words_of(value, key):
                name, equals, _ = word.text.partition("=")
                if not equals or not _NAME.fullmatch(name):
                    raise PolicyError(
                        f"{word.origin}: Environment: {word.text!r} is not NAME=VALUE; quote all of it where the value "
                        'has blanks: Environment="NAME=--one=1 --two=2"'
                    )
                self.own[name] = _unspecified(word.part(len(name) + 1))
        elif key == "EnvironmentFile":
            if not value.text:
                self.from_files = {}
                return
            path = value.text.removeprefix("-")
            found = self.read(path)
            if found is not None:
                self.from_files |= _environment(found)
            elif not value.text.startswith("-"):
                raise PolicyError(
                    f"{origin}: EnvironmentFile: {path} is not there, and systemd does not start the unit; "
                    "name the node's root with --root, or write EnvironmentFile=-PATH if it may be missing"
                )

    def flags(self) -> list[Word]:
        variables = {**self.own, **self.from_files}
        if len(self.commands) > 1:
            raise PolicyError(
                f"{self.commands[1].origin}: ExecStart: is given twice (first in {self.commands[0].origin}); a drop-in "
                "needs an empty ExecStart= before its own"
            )
        if self.commands:
            words = list(self._expanded(self.commands[0], variables))
            return [*_flags_of(words, "ExecStart"), *self.shell]
        found = list(self.shell)
        for name, value in variables.items():
            if value.text.lstrip().startswith("-"):
                self.notes.append(f"{value.origin}: no ExecStart= was given: {name} is taken for flags of the kubelet")
                found += [Word(word.text, word.origin) for word in words_of(value, name)]
        return found

    def _expanded(self, command: Text, variables: dict[str, Text]) -> Iterator[Word]:
        prefix = re.match(r"[@\-:+!|]*", command.text)
        skipped = prefix.group() if prefix else ""
        for word in words_of(command.part(len(skipped)), "ExecStart"):
            word = _unspecified(word)
            whole = re.fullmatch(r"\$(\w+)", word.text)
            if ":" in skipped:
                yield Word(word.text, word.origin)
            elif whole:
                if whole[1] in variables:
                    value = variables[whole[1]]
                    yield from (Word(part.text, part.origin) for part in words_of(value, whole[1]))
                else:
                    self._unset(whole[1], word.origin)
            else:
                yield self._filled(word, variables)

    def _filled(self, word: Text, variables: dict[str, Text]) -> Word:
        """``${NAME}`` inside a word: its value, not split."""
        inside = VARIABLE.findall(word.text)
        for name in inside:
            if name not in variables:
                self._unset(name, word.origin)
        text = VARIABLE.sub(lambda found: variables[found[1]].text if found[1] in variables else "", word.text)
        alone = len(inside) == 1 and VARIABLE.fullmatch(word.text) and inside[0] in variables
        return Word(text.replace("$$", "$"), variables[inside[0]].origin if alone else word.origin)

    def _unset(self, name: str, origin: str) -> None:
        self.notes.append(f"{origin}: {name} is set in none of the files: it counts as empty")


def _flags_of(words: list[Word], key: str = "") -> list[Word]:
    """What follows the kubelet in a command line; a shell that starts it is looked into."""
    if not words or (not key and words[0].text.startswith("-")):
        return words
    names = [word.text.rpartition("/")[2] for word in words]
    if names[0] in ("sh", "bash") and "-c" in names[:-1]:
        inner = words[names.index("-c") + 1]
        return _flags_of(list(command_words(Text(inner.text, [inner.origin] * len(inner.text)), by_shell=True)), key)
    if names[0] in _EMBEDDING:
        return list(_embedded(words[1:]))
    if "kubelet" in names:
        return words[names.index("kubelet") + 1 :]
    prefix = f"{key}: " if key else ""
    raise PolicyError(
        f"{words[0].origin}: {prefix}{words[0].text!r} is no kubelet; name the unit, environment file or command line "
        "of the kubelet"
    )


def _embedded(words: list[Word]) -> Iterator[Word]:
    """``--kubelet-arg=eviction-hard=...`` of k3s."""
    rest = iter(words)
    for word in rest:
        name, equals, value = word.text.partition("=")
        if name != "--kubelet-arg":
            continue
        if not equals:
            following = next(rest, None)
            if following is None:
                raise PolicyError(f"{word.origin}: --kubelet-arg: has no value; write --kubelet-arg=FLAG=VALUE")
            value = following.text
        yield Word(f"--{value.removeprefix('--')}", word.origin)


def _unspecified(word: Text) -> Text:
    """``%%`` is a percent sign in a unit; other specifiers stay, no flag that is translated has one."""
    text, origins, at = "", list[str](), 0
    while at < len(word.text):
        text += word.text[at]
        origins.append(word.origins[at])
        at += 2 if word.text.startswith("%%", at) else 1
    return Text(text, origins or word.origins)


def _environment(file: Written) -> dict[str, Text]:
    """NAME=VALUE lines; a quoted value may go over several lines."""
    found = {}
    lines = iter(enumerate(file.text.splitlines(), 1))
    for number, line in lines:
        origin = f"{file.name}:{number}"
        if not line.strip() or line.strip()[0] in "#;":
            continue
        name, equals, value = line.strip().partition("=")
        if name.startswith("export "):
            raise PolicyError(f"{origin}: {name}: systemd knows no `export` in such a file; write NAME=VALUE")
        if not equals or not _NAME.fullmatch(name.strip()):
            raise PolicyError(f"{origin}: {line.strip()[:40]!r} is not NAME=VALUE; correct it, or put a # before it")
        text = Text(value, [origin] * len(value))
        while (more := _goes_on(text)) is not None:
            number, line = next(lines, (0, ""))
            if not number:
                raise PolicyError(f"{origin}: {name.strip()}: {OPEN_QUOTE}")
            kept = text.part(0, len(text.text) - 1) if more == "\\" else Text(f"{text.text} ", [*text.origins, origin])
            text = Text(kept.text + line, [*kept.origins, *[f"{file.name}:{number}"] * len(line)])
        # One value: what a quote holds together stays as it is, blanks between words too.
        found[name.strip()] = _unquoted(text)
    return found


def _goes_on(value: Text) -> str | None:
    r"""``\`` or the open quote where the next line belongs to the value too."""
    if value.text.endswith("\\") and not value.text.endswith("\\\\"):
        return "\\"
    try:
        list(pieces(value, by_shell=True))
    except OpenQuoteError:
        return '"'
    return None


def _unquoted(value: Text) -> Text:
    """The value without the quotes around it; quotes inside are left to who splits it into words."""
    text = value.text.strip()
    start = value.text.find(text)
    if len(text) > 1 and text[0] in "'\"" and text[-1] == text[0] and text[0] not in text[1:-1].replace('\\"', ""):
        inner = value.part(start + 1, start + len(text) - 1)
        return inner if '\\"' not in inner.text else Text(inner.text.replace('\\"', '"'), inner.origins)
    return value.part(start, start + len(text))
