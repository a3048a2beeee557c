"""What the tests of holds share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.actions.braked import Stand, stand


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Stand]:
    with stand(tmp_path / "state") as found:
        yield found
