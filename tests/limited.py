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


def limit(path: Path, mib: int) -> dict[str, int]:
    """Set all limits of a real cgroup, ``mib`` the hardest; what should be read then, its swap aside (0 or unknown)."""
    v1 = (path / "memory.limit_in_bytes").exists()
    size = mib * MIB
    if v1:
        wanted = {"memory.limit_in_bytes": size, "memory.soft_limit_in_bytes": size // 2}
        wanted["memory.memsw.limit_in_bytes"] = size + MIB
    else:
        wanted = {"memory.min": size // 8, "memory.low": size // 4, "memory.high": size // 2, "memory.max": size}
        wanted["memory.swap.max"] = MIB
    there = {name: value for name, value in wanted.items() if (path / name).exists()}
    for name, value in there.items():
        (path / name).write_text(str(value))
    swap_max = {"swap_max": MIB} if {"memory.memsw.limit_in_bytes", "memory.swap.max"} & there.keys() else {}
    if v1:
        return {"max": size, "soft": size // 2, **swap_max}
    return {"min": size // 8, "low": size // 4, "high": size // 2, "max": size, **swap_max}
