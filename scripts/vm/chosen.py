"""Which kernels `make test-vm` boots where no option names one: one, by the commit's hash; all where the kernel's side
of the project changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from images import FAMILIES, ROOT, Family

#: What can come out differently on another kernel.
KERNELS_SIDE = ("bpf/", "monitor/kernel/")
#: What is taken for the change: in a fresh clone nothing else tells where it began. $OUTRACE_BASE names another commit.
COMMITS = 20


def git(root: Path, *arguments: str) -> str:
    """What git prints; "" where there is no git, no checkout or no such commit."""
    if not (root / ".git").exists() or not shutil.which("git"):
        return ""
    command = ["git", "-c", "safe.directory=*", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def changed(root: Path = ROOT) -> list[str]:
    """The files that the change touched, by its commits and in the working tree."""
    history = git(root, "rev-list", "--first-parent", f"--max-count={COMMITS + 1}", "HEAD").splitlines()
    base = os.environ.get("OUTRACE_BASE") or (history[-1] if history else "")
    return git(root, "diff", "--name-only", base).splitlines() if base else []


def choose_by_change(root: Path = ROOT, *, one: bool = False) -> tuple[Sequence[Family], str]:
    """The kernels, and why these; with ``one`` a single kernel, whatever changed."""
    names = [] if one else changed(root)
    if touched := sorted({part for part in KERNELS_SIDE for name in names if name.startswith(part)}):
        return FAMILIES, f"all kernels: {', '.join(touched)} changed"
    head = git(root, "rev-parse", "HEAD")
    family = FAMILIES[int(head[:8] or "0", 16) % len(FAMILIES)]
    return (family,), f"Linux {family.kernel}, by the hash of the commit (--all: all of them)"
