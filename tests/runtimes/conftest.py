"""What the tests of runtimes share."""

from pathlib import Path

import pytest

from tests.runtimes import images, podman


@pytest.fixture(scope="session")
def pause(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of the images."""
    podman.need({"cc": "gcc libc6-dev"})
    return images.program(tmp_path_factory.mktemp("pause"))
