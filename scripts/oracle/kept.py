"""The files of the oracle in tests/data/oracle: recordings and a state dir in archives, answers as JSON; all by xz."""

from __future__ import annotations

import io
import json
import lzma
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data/oracle"
RECORDINGS, ANSWERS, STATE = DATA / "recordings", DATA / "answers", DATA / "state.tar.xz"
INTENDED = ROOT / "tests/oracle/intended.toml"
Answers = dict[str, Any]


def pack(path: Path, files: Mapping[str, bytes]) -> None:
    """An archive of these, the same for the same ones. Their times are in the order of ``files``."""
    made, order = io.BytesIO(), list(files)
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), order.index(name)
            archive.addfile(member, io.BytesIO(data))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(made.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def unpack(path: Path, into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "r:xz") as archive:
        for member in archive:
            data = archive.extractfile(member)
            assert data is not None
            path = into / Path(member.name).name
            path.write_bytes(data.read())
            os.utime(path, (member.mtime, member.mtime))


def write(answers: Answers, directory: Path = ANSWERS) -> None:
    """One file for each group: what stands before the first slash of an answer's name."""
    directory.mkdir(parents=True, exist_ok=True)
    for group in sorted({name.partition("/")[0] for name in answers}):
        mine = {name: answer for name, answer in answers.items() if name.startswith(f"{group}/")}
        (directory / f"{group}.json.xz").write_bytes(lzma.compress(json.dumps(mine).encode(), preset=9))


def read(directory: Path = ANSWERS) -> Answers:
    found: Answers = {}
    for path in sorted(directory.glob("*.json.xz")):
        found |= json.loads(lzma.decompress(path.read_bytes()))
    return found
