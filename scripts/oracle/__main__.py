"""The oracle: does this tree answer as the kept answers say? (docs/contributing.md)

    .venv/bin/python scripts/oracle compare [--tree DIR] [--only PATTERN]
    .venv/bin/python scripts/oracle record answers|simulated|live|state [--tree DIR]

`compare` prints what differs, and exits with 1 if something does that tests/oracle/intended.toml does not list.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

import kept
from asking import everything
from differences import differences, intended, report


def compare(tree: Path, only: str) -> int:
    with tempfile.TemporaryDirectory(prefix="outrace-oracle-") as place:
        found, left_out = everything(tree, Path(place), only)
    groups = {name.partition("/")[0] for name in found}
    before = {n: one for n, one in kept.read().items() if fnmatchcase(n, only) and n.partition("/")[0] in groups}
    lines, is_right = report(differences(before, found), intended(kept.INTENDED))
    print(*lines, sep="\n", end="\n" if lines else "")
    print(*(f"left out: {why}" for why in left_out), sep="\n", end="\n" if left_out else "")
    print(f"{len(found)} answers compared: {'no difference but those listed' if is_right else 'they differ'}")
    return 0 if is_right else 1


def record(what: str, tree: Path, only: str) -> int:
    if what == "simulated":
        import simulate

        kept.pack(kept.RECORDINGS / "simulated.tar.xz", {f"{n}.rec": data for n, data in simulate.recordings()})
    elif what == "state":
        import simulate

        kept.pack(kept.STATE, simulate.incidents())
    elif what == "live":
        import live

        with tempfile.TemporaryDirectory(prefix="outrace-oracle-") as place:
            with suppress(KeyboardInterrupt):  # what there is then is kept
                live.record(Path(place), only)
            version = 2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1
            files = {path.name: path.read_bytes() for path in Path(place).iterdir()}
            kept.pack(kept.RECORDINGS / f"live-v{version}.tar.xz", files)
    else:
        with tempfile.TemporaryDirectory(prefix="outrace-oracle-") as place:
            found, left_out = everything(tree, Path(place), only)  # of whole groups
        if left_out:
            print(*left_out, sep="\n", file=sys.stderr)
            return 1
        kept.write(found)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("compare", "record"):
        command = commands.add_parser(name)
        command.add_argument("--tree", type=Path, default=kept.ROOT, help="another tree than this one")
        command.add_argument("--only", default="*", help="answers (compare) or live recordings: 'options/*'")
        if name == "record":
            command.add_argument("what", choices=("answers", "simulated", "live", "state"))
    given = parser.parse_args()
    tree = given.tree.resolve()
    return compare(tree, given.only) if given.command == "compare" else record(given.what, tree, given.only)


if __name__ == "__main__":
    sys.exit(main())
