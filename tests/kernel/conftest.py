"""What the tests of the programs share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def files() -> Iterator[Path]:
    """Where page cache comes from. /tmp may be a tmpfs, whose pages are not file pages."""
    with tempfile.TemporaryDirectory(prefix="outrace-test-", dir="/var/tmp") as directory:
        yield Path(directory)
