"""Hooks that the kernel offered and then refused, in the state dir: trying one again costs a compilation.

They are tried again after a boot, or when their stamp (`monitor.kernel.loader.stamp`) changes.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

FILE = "refused-hooks.json"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def refused_stamps(state_dir: Path) -> dict[str, str]:
    """{stamp: why} of this boot."""
    try:
        found = json.loads((state_dir / FILE).read_text())
        return {str(mark): str(why) for mark, why in found["stamps"].items()} if found["boot"] == _boot() else {}
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return {}  # tried again then


def remember(state_dir: Path, mark: str, why: str) -> None:
    """Note why the programs of this stamp were refused; a state dir that cannot be written loses it."""
    found = {"boot": _boot(), "stamps": refused_stamps(state_dir) | {mark: why}}
    with suppress(OSError):
        (state_dir / FILE).write_text(json.dumps(found))
