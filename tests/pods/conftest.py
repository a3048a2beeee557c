"""Fixtures of several modules here."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.pods import runtimes
from tests.pods.cluster import cluster as cluster
from tests.pods.manifest_folder import folder as folder
from tests.pods.manifest_folder import place as place
from tests.pods.manifest_folder import pods as pods
from tests.pods.programs import programs as programs
from tests.pods.top_node import small as small
from tests.pods.unit_tree import machine as machine
from tests.puppet import cgroup


@pytest.fixture(autouse=True)
def _not_in_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers may answer late: another process may have both CPUs."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(runtimes, "TIMEOUT_S", 60.0)
    monkeypatch.setattr("monitor.pods.access._TIMEOUT_S", 60.0)  # (what is away refuses at once)


@pytest.fixture
def node() -> Iterator[Path]:
    """A memory cgroup of the test's own."""
    if os.geteuid() != 0:
        pytest.skip("not root: cannot make a cgroup")
    with cgroup("pods") as path:
        yield path
