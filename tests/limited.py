"""Cgroups with every limit that this kernel knows, and trees of files that look like cgroups of another one."""

from pathlib import Path

from monitor.kernel.limits import EVERYTHING

MIB = 1 << 20
#: What v1 prints for "no limit".
UNLIMITED = EVERYTHING


def write(path: Path, files: dict[str, int | str]) -> Path:
    """A directory with these files in it, a line each."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.procs").touch()
    for name, content in files.items():
        file, text = path / name, f"{content}\n"
        if not file.exists() or file.read_text() != text:  # ext4 flushes what is truncated and written again
            file.write_text(text)
    return path
