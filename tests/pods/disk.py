"""Directories of pods on a disk of their own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from monitor.pods.model import FoundPod
from monitor.pods.storage import Roots
from monitor.policy.stats import PodStats
from tests.filesystems import Mounts
from tests.policy.builders import pod

KI = 1024
#: A tmpfs counts whole pages and nothing for directories: what is written is what is counted.
PAGE = 4 * KI


@pytest.fixture
def disk(mounts: Mounts) -> Path:
    return mounts.tmpfs("disk", size=4 << 20)


@pytest.fixture
def roots(disk: Path) -> Roots:
    found = Roots(disk / "log", disk / "pods")
    for path in found:
        path.mkdir()
    return found


def found_pod(
    *containers: dict[str, Any],
    cgroup: Path = Path("/nonexistent"),
    cgroups: Mapping[str, Path] | None = None,
    **more: Any,
) -> FoundPod:
    return FoundPod(pod("a", *containers, **more), cgroup, cgroups or {})


def put(path: Path, size: int) -> Path:
    """A file of ``size`` bytes, and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    return path


def by_container(stats: PodStats, kind: str, key: str) -> dict[str, int]:
    return dict(zip(stats.container_names(), stats.files_each([kind], key), strict=True))
