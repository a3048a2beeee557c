"""Lines and words as systemd and shells cut them: continued lines, comments, quotes, escapes, each with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from monitor.policy.errors import PolicyError

_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " "}
VARIABLE = re.compile(r"\$\{(\w+)\}")
OPEN_QUOTE = "a quote is opened and never closed; close it, or write the word without"


class Word(NamedTuple):
    """A word of a command line, and where it was written: ``FILE:LINE``."""

    text: str
    origin: str


class Written(NamedTuple):
    """A file's name and text."""

    name: str
    text: str


class Text(NamedTuple):
    """A text whose every character has its ``FILE:LINE``."""

    text: str
    origins: Sequence[str]

    @property
    def origin(self) -> str:
        return self.origins[0] if self.origins else ""

    def part(self, start: int, end: int | None = None) -> Text:
        return Text(self.text[start:end], self.origins[start:end])


def joined_lines(file: Written, comments: str, glue: str) -> Iterator[Text]:
    r"""Lines with those that a ``\`` at the end continues, without comments (also among continued lines)."""
    text, origins = "", list[str]()
    for number, line in enumerate(file.text.splitlines(), 1):
        if line.strip()[:1] and line.strip()[0] in comments:
            continue
        if not text:
            line = line.lstrip()
        goes_on = line.endswith("\\")
        line = f"{line[:-1]}{glue}" if goes_on else line.rstrip()
        text += line
        origins += [f"{file.name}:{number}"] * len(line)
        if not goes_on and text:
            yield Text(text.rstrip(), origins)
            text, origins = "", []
    if text.strip():
        yield Text(text.rstrip(), origins)


def words_of(value: Text, key: str) -> Iterator[Text]:
    try:
        yield from pieces(value, by_shell=False)
    except OpenQuoteError as error:
        raise PolicyError(f"{error}: {key}: {OPEN_QUOTE}") from None


def command_words(line: Text, by_shell: bool) -> Iterator[Word]:
    try:
        for piece in pieces(line, by_shell):
            if VARIABLE.search(piece.text) or re.search(r"\$\w", piece.text):
                raise PolicyError(
                    f"{piece.origin}: {piece.text!r}: the variable is known to the shell alone; write its value"
                )
            yield Word(piece.text, piece.origin)
    except OpenQuoteError as error:
        raise PolicyError(f"{error}: {OPEN_QUOTE}") from None


class OpenQuoteError(ValueError):
    """Says where."""


def pieces(line: Text, by_shell: bool) -> Iterator[Text]:
    """Words without their quotes and escapes."""
    word, origins, started, quote, opened = "", list[str](), False, "", ""
    at = 0
    while at < len(line.text):
        char, origin, step = line.text[at], line.origins[at], 1
        if quote and char == quote:
            quote, step, char = "", 1, ""
        elif not quote and char in "'\"":
            quote, opened, started, char = char, origin, True, ""
        elif char == "\\" and not (by_shell and quote == "'"):
            char, step = _escape(line.text[at + 1 : at + 4], by_shell, quote)
        elif not quote and char.isspace():
            if started:
                yield Text(word, origins or [origin])
            word, origins, started, char = "", [], False, ""
            at += 1
            continue
        if char:
            word, started = word + char, True
            origins += [origin] * len(char)
        at += step
    if quote:
        raise OpenQuoteError(opened)
    if started:
        yield Text(word, origins or [line.origin])


def _escape(following: str, by_shell: bool, quote: str) -> tuple[str, int]:
    r"""What stands for a ``\`` and what follows it, and how many characters that is."""
    if not following:
        return "\\", 1
    char = following[0]
    if by_shell:
        return (char, 2) if not quote or char in '"\\$`' else (f"\\{char}", 2)
    if char == "x" and re.fullmatch(r"[0-9a-fA-F]{2}", following[1:3]):
        return chr(int(following[1:3], 16)), 4
    return (_ESCAPES[char], 2) if char in _ESCAPES else (char, 2) if char in "\\'\"" else (f"\\{char}", 2)
