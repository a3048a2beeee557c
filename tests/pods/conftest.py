"""What the tests of manifests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pods.manifest_folder import folder as folder
from tests.pods.manifest_folder import hierarchy as hierarchy
from tests.pods.manifest_folder import pods as pods
from tests.puppet import cgroup


@pytest.fixture
def node() -> Iterator[Path]:
    """A memory cgroup of the test's own."""
    with cgroup("pods") as path:
        yield path
