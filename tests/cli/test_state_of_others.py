"""A state directory that another user made: `unload` believes nothing in it, and waits for nothing in it."""

import json
import os
from pathlib import Path

import pytest

from monitor.cli.main import main
from tests import others
from tests.pin_instances import new_instance
from tests.pin_instances import root as root

pytestmark = [pytest.mark.kernel, pytest.mark.once]

#: A record of taints with the credentials of root, and a lock that no process ever writes into.
MADE = """
os.makedirs(f"{state}/taints", exist_ok=True)
os.mkfifo(f"{state}/lock")
open(f"{state}/taints/a.json", "w").write(record)
"""


@pytest.mark.parametrize("given", [True, False], ids=["given", "of pins"])
def test_a_state_directory_of_another_user_is_not_believed(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    """Root removed it from /tmp, and its pins stayed: another user has the name now."""
    monkeypatch.setattr("monitor.cli.unload._STATE_DIR", "/nonexistent")
    with others.shared() as shared:
        state = shared / "state"
        instance = new_instance(state)
        state.rmdir()
        record = json.dumps({"node": "n", "keys": ["k"], "kubeconfig": "/nonexistent", "given": True})
        others.does(f"state, record = {os.fspath(state)!r}, {record!r}\n{MADE}")
        assert main(["unload", *(["--state-dir", str(state)] if given else [])]) == 1
        [*_, line] = capsys.readouterr().err.splitlines()
        assert f"{state} belongs to user {others.UID}; chown root {state}" in line
        assert "taints are left" not in line
        assert not instance.exists()
