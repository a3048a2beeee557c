#!/usr/bin/env python3
"""Make docs/messages.md of the definitions in monitor/link/messages.py: each class, its fields, units and meanings.

scripts/messages_doc.py > docs/messages.md
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from monitor.link import messages

_HEAD = """\
# Messages between the hot process and the side

Made by `scripts/messages_doc.py` from `monitor/link/messages.py`; change it there. One packet each, over the socketpair
of `monitor/link/channel.py`; who sends what and when: [processes.md](processes.md). A packet is one JSON object
(`monitor/link/codec.py`), `"t"` is the type. Times are CLOCK_MONOTONIC nanoseconds, sizes bytes; a field with a default
may be missing.
"""


def rows(types: Mapping[str, type]) -> Iterator[str]:
    """The lines of a table of messages."""
    yield "| t | meaning | fields |\n|---|---|---|\n"
    for name, cls in types.items():
        meaning = " ".join((inspect.getdoc(cls) or "").split())
        yield f"| `{name}` | {meaning} | {'; '.join(fields(cls)) or 'none'} |\n"


def fields(cls: type) -> Iterator[str]:
    """What a class says of each of its fields: name, type, default, meaning."""
    lines = inspect.getsource(cls).splitlines()
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.AnnAssign):
            default = "" if node.value is None else f", default `{ast.unparse(node.value)}`"
            meaning = lines[node.lineno - 1].partition("  # ")[2]
            kind = ast.unparse(node.annotation).replace("|", "or")
            yield f"`{ast.unparse(node.target)}` ({kind}{default})" + (f" {meaning}" if meaning else "")


def document() -> str:
    """The whole file."""
    parts = [
        _HEAD,
        "\n## hot -> side\n",
        *rows(messages.HOT_TO_SIDE),
        "\n## side -> hot\n",
        *rows(messages.SIDE_TO_HOT),
    ]
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(document())
