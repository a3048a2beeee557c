"""Which state dir an instance of pins belongs to, what `outrace unload` leaves alone, and what the loader imports."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.cli.main import main
from monitor.cli.run import lock
from monitor.errors import CannotError
from monitor.kernel import loader
from tests import live
from tests.pin_instances import new_instance, state_directory
from tests.pin_instances import root as root

pytestmark = [pytest.mark.kernel, pytest.mark.once]


def test_unload_goes_on_after_one_that_is_in_use(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    states = sorted((tmp_path / name for name in "abc"), key=loader.instance_directory)
    first, busy, last = (new_instance(state) for state in states)
    held = lock(states[1])
    try:
        assert main(["unload"]) == 1
        [line] = capsys.readouterr().err.splitlines()
        assert f"{busy} is in use by pid {os.getpid()}; stop that daemon first, or give --force" in line
        assert list(root.iterdir()) == [busy]
        assert state_directory(busy) == states[1]
        assert [state_directory(gone) for gone in (first, last)] == [None, None]
    finally:
        os.close(held)
    assert main(["unload"]) == 0
    assert not root.exists()


def test_a_load_that_fails_leaves_nothing(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    state.mkdir()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(CannotError, match="the BPF loader ended with status 1"):
        loader.ensure_loaded(state)
    assert not root.exists()


def test_nothing_in_the_working_directory_is_imported(root: Path, tmp_path: Path) -> None:
    """Also not by the loader, which imports what no other part does."""
    evil, state, marker = tmp_path / "evil", tmp_path / "state", tmp_path / "imported"
    evil.mkdir()
    state.mkdir(mode=0o700)
    for module in ("bcc", "hashlib", "json", "subprocess"):
        (evil / f"{module}.py").write_text(f"open({str(marker)!r}, 'w').close()\nraise ImportError('evil')\n")
    code = (
        "import sys; from pathlib import Path; from monitor.kernel import loader, pins; "
        "pins.ROOT = Path(sys.argv[1]); loader.ensure_loaded(Path(sys.argv[2]))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(root), str(state)],
        env=live.environment(),
        cwd=evil,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert not marker.exists()
    assert done.returncode == 0, done.stderr
    (found,) = [path.parent for path in root.glob("*/*/prog_on_mark_victim")]
    assert found in [loader.instance_directory(state) / stamp for stamp in loader.stamps().values()]
