"""What is different between kept answers and those of a tree, and which of it tests/oracle/intended.toml lists."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

GONE, NEW, CHANGED = "gone", "new", "changed"
#: Lines printed of one answer, answers printed, and characters of a value.
MOST_OF_ONE, MOST_ANSWERS, LONGEST = 8, 40, 160


class Difference(NamedTuple):
    """At a path of an answer (keys and positions with dots between): something is gone, new, or another."""

    answer: str
    path: str
    how: str
    before: Any
    after: Any

    def __str__(self) -> str:
        values = {GONE: f"{_short(self.before)} is gone", NEW: f"{_short(self.after)} is new"}
        what = values.get(self.how, f"{_short(self.before)} became {_short(self.after)}")
        return f"{self.answer}: {self.path or 'all of it'}: {what}"


class Intended(NamedTuple):
    """Patterns of answers and of paths (`*` is anything, dots too), and why they may differ. ``how``: only so."""

    answer: tuple[str, ...]
    path: tuple[str, ...]
    reason: str
    how: str = ""

    def covers(self, one: Difference) -> bool:
        return self.how in ("", one.how) and _like(one.answer, self.answer) and _like(one.path, self.path)

    def __str__(self) -> str:
        return f"{' '.join(self.answer)}: {' '.join(self.path)}: {self.reason}"


def _like(text: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    """Of all answers: first by name, then by path."""
    for name in sorted({*before, *after}):
        if name not in after:
            yield Difference(name, "", GONE, before[name], None)
        elif name not in before:
            yield Difference(name, "", NEW, None, after[name])
        else:
            yield from (Difference(name, *found) for found in _within("", before[name], after[name]))


Found = tuple[str, str, Any, Any]


def _within(path: str, before: Any, after: Any) -> Iterator[Found]:
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _of_objects(path, before, after)
    elif isinstance(before, list) and isinstance(after, list):
        if _are_named(before) and _are_named(after):
            yield from _of_objects(path, *({one["name"]: one for one in some} for some in (before, after)))
        else:
            yield from _of_lists(path, before, after)
    elif json.dumps(before) != json.dumps(after):  # 1, 1.0 and true are three
        yield path, CHANGED, before, after


def _of_objects(path: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[Found]:
    for key in [*before, *(key for key in after if key not in before)]:
        at = f"{path}.{key}" if path else key
        if key not in after:
            yield at, GONE, before[key], None
        elif key not in before:
            yield at, NEW, None, after[key]
        else:
            yield from _within(at, before[key], after[key])
    orders = [[key for key in some if key in before and key in after] for some in (before, after)]
    if orders[0] != orders[1]:
        yield f"{path}.<order>", CHANGED, *orders


def _of_lists(path: str, before: list[Any], after: list[Any]) -> Iterator[Found]:
    """Positions are those of ``before``; of what is new, those of ``after``."""
    texts = [[json.dumps(one) for one in some] for some in (before, after)]
    for _, a, a_end, b, b_end in SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        both = min(a_end - a, b_end - b)
        for i in range(both):
            if texts[0][a + i] != texts[1][b + i]:
                yield from _within(f"{path}.{a + i}", before[a + i], after[b + i])
        yield from ((f"{path}.{i}", GONE, before[i], None) for i in range(a + both, a_end))
        yield from ((f"{path}.{i}", NEW, None, after[i]) for i in range(b + both, b_end))


def _are_named(some: Sequence[Any]) -> bool:
    names = [one.get("name") for one in some if isinstance(one, dict)]
    return len(names) == len(some) == len(set(map(str, names))) and all(isinstance(name, str) for name in names)


def _entry(answer: str | list[str], path: str | list[str], reason: str, how: str = "") -> Intended:
    patterns = [(some,) if isinstance(some, str) else tuple(some) for some in (answer, path)]
    return Intended(*patterns, reason, how)


def intended(path: Path) -> list[Intended]:
    """Entries of the file. Raises ValueError (TypeError) if one is not complete, or has a key that is none."""
    entries = [_entry(**one) for one in tomllib.loads(path.read_text()).get("intended", ())]
    for entry in entries:
        if not entry.reason.strip() or entry.how not in ("", GONE, NEW, CHANGED):
            raise ValueError(f"{path}: {entry}: each needs a reason, and how is {GONE}, {NEW} or {CHANGED}")
    return entries


def report(found: Iterable[Difference], listed: Sequence[Intended]) -> tuple[list[str], bool]:
    """Lines to print, and whether nothing differs but what is listed."""
    used: dict[Intended, int] = dict.fromkeys(listed, 0)
    unlisted: dict[str, list[Difference]] = {}
    for one in found:
        entry = next((entry for entry in listed if entry.covers(one)), None)
        if entry is None:
            unlisted.setdefault(one.answer, []).append(one)
        else:
            used[entry] += 1
    lines = []
    for name, some in list(unlisted.items())[:MOST_ANSWERS]:
        lines += [*map(str, some[:MOST_OF_ONE])]
        lines += [f"{name}: ... and {len(some) - MOST_OF_ONE} more"] if len(some) > MOST_OF_ONE else []
    if len(unlisted) > MOST_ANSWERS:
        lines.append(f"... and {len(unlisted) - MOST_ANSWERS} more answers: {', '.join(list(unlisted)[MOST_ANSWERS:])}")
    lines += [f"intended, {count} times: {e}" for e, count in used.items() if count]
    lines += [f"intended, and matches nothing: {e}" for e, n in used.items() if not n]
    return lines, not unlisted
