"""vagrant/Vagrantfile, as far as it can be read without a machine: syntax, providers, the machines and their boxes."""

import os
import shutil
from pathlib import Path

import pytest

from tests.commands import run

HERE = Path(__file__).resolve().parents[2] / "vagrant"
MACHINES = ("debian12", "debian13", "sid")
needs_vagrant = pytest.mark.skipif(shutil.which("vagrant") is None, reason="no vagrant: apt-get install vagrant")


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    """Nothing of this user's is read, and nothing is left beside the Vagrantfile."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("OUTRACE_", "VAGRANT_"))}
    own = {"VAGRANT_HOME": str(tmp_path / "home"), "VAGRANT_DOTFILE_PATH": str(tmp_path / "dot"), "HOME": str(tmp_path)}
    return kept | own | {"VAGRANT_CWD": str(HERE), "VAGRANT_CHECKPOINT_DISABLE": "1"} | more


@pytest.mark.skipif(shutil.which("ruby") is None, reason="no ruby: apt-get install ruby")
@pytest.mark.parametrize("name", ["Vagrantfile", "offline/Vagrantfile"])
def test_ruby_parses_it(name: str) -> None:
    done = run("ruby", "-c", HERE / name)
    assert (done.returncode, done.stdout) == (0, "Syntax OK\n"), done.stderr


@needs_vagrant
@pytest.mark.parametrize("provider", ["libvirt", "virtualbox"])
def test_the_machines_there_are(tmp_path: Path, provider: str) -> None:
    if provider == "virtualbox" and shutil.which("VBoxManage") is None:
        pytest.skip("no VirtualBox: Vagrant reads a Vagrantfile for it only where it is installed")
    env = environment(tmp_path, VAGRANT_DEFAULT_PROVIDER=provider)
    done = run("vagrant", "validate", env=env)
    if done.returncode and f"'{provider}' could not be found" in done.stderr:
        pytest.skip(f"no plugin for it: apt-get install vagrant-{provider}")
    assert "validated successfully" in done.stdout, done.stderr
    output = run("vagrant", "status", "--machine-readable", env=env, check=True).stdout
    rows = [line.split(",", 4)[1:] for line in output.splitlines()]
    assert tuple(row[0] for row in rows if row[1] == "state") == MACHINES, "the first is the default"
    assert {tuple(row[1:]) for row in rows if row[1] == "provider-name"} == {("provider-name", provider)}
    assert {row[2] for row in rows if row[1] == "state"} == {"not_created"}
