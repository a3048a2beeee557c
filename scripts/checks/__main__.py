"""What `make lint` holds of the tree beside ruff and mypy: what imports what, and that documents name what is there.

    .venv/bin/python scripts/checks [NAME ...]
    .venv/bin/python scripts/checks words --record

A line for each complaint, exit code 1 if there is one. The second notes how much unclear prose there is, after it fell.
"""

import sys
from collections.abc import Callable, Iterator

import command_lines
import documents
import lanes
import layering
import seeds
import way
import words

#: Name -> its complaints. Each of them begins with the file.
CHECKS: dict[str, Callable[[], Iterator[str]]] = {
    "layering": layering.complaints,
    "documents": documents.complaints,
    "command_lines": command_lines.complaints,
    "lanes": lanes.complaints,
    "way": way.complaints,
    "seeds": seeds.complaints,
    "words": words.complaints,
}


def main(names: list[str]) -> int:
    if names == ["words", "--record"]:
        words.record()
        return 0
    found = [text for name in names or CHECKS for text in CHECKS[name]()]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
