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


#: Reads the Vagrantfile as `vagrant up` does, by Vagrant's own configuration, and prints what a provider gets of it:
#: first as it stands, then with OUTRACE_ALL.
SETTINGS = """
require "vagrant"
[nil, "1"].each do |all|
  ENV["OUTRACE_ALL"] = all
  env = Vagrant::Environment.new(cwd: ENV["VAGRANT_CWD"])
  env.machine_names.each do |name|
    %i[libvirt virtualbox].each do |provider|
      found = env.vagrantfile.machine_config(name, provider, nil, nil, false)[:config]
      started = env.vagrantfile.machine_names_and_options[name][:autostart]
      primary = env.primary_machine_name == name
      kinds = found.vm.provisioners.map { |one| one.name }.join("+")
      shared = found.vm.synced_folders.values.find { |one| one[:guestpath] == "/vagrant" and not one[:disabled] }
      sent = shared[:args] || shared[:rsync__args]
      puts [name, provider, found.vm.box, found.vm.hostname, primary, started, kinds, *sent].join(" ")
    end
  end
end
"""


@needs_vagrant
def test_each_provider_gets_its_boxes(tmp_path: Path) -> None:
    done = run("ruby", "-e", SETTINGS, env=environment(tmp_path, OUTRACE_BOX_SID="my/own"))
    if done.returncode and "cannot load such file -- vagrant" in done.stderr:
        pytest.skip("Vagrant is not one of this ruby's own libraries (HashiCorp's package brings a ruby of its own)")
    assert done.returncode == 0, done.stderr
    rows = [line.split(" --", 1) for line in done.stdout.splitlines()]
    # With Vagrant's own --copy-links the link monitor/_bpf would be a directory there.
    assert {sent for _, sent in rows} == {"archive --delete --compress"}
    assert [row for row, _ in rows] == [
        row
        for later in ("false", "true")
        for row in (
            "debian12 libvirt debian/bookworm64 outrace-debian12 true true setup",
            "debian12 virtualbox debian/bookworm64 outrace-debian12 true true setup",
            f"debian13 libvirt debian/trixie64 outrace-debian13 false {later} setup",
            f"debian13 virtualbox bento/debian-13 outrace-debian13 false {later} setup",
            f"sid libvirt my/own outrace-sid false {later} kernel+setup",
            f"sid virtualbox my/own outrace-sid false {later} kernel+setup",
        )
    ]
