"""The Debian package under a real systemd: installed, used, restarted, upgraded during an eviction, removed.

It changes the machine, so it runs only where `make test-vagrant` has put two packages beside the checkout.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import live
from tests.commands import TIMEOUT_S, run
from tests.deploy import package
from tests.deploy.package import UNIT, outrace, systemctl
from tests.deploy.package import installed as installed

CONFIG = Path("/etc/outrace/outrace.yaml")
RUN_DIR = Path("/run/outrace")
#: Unpacking and the start after it take 25 to 130 s on an emulated CPU that others use too.
GRACE_S = 240

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def others(installed: None) -> Mapping[str, int]:
    """What ran before anything was evicted."""
    return package.running()


def test_it_runs_as_soon_as_it_is_installed_and_only_observes(installed: None) -> None:
    package.ready()
    assert systemctl("is-enabled", "outrace") == "enabled"
    assert [one["value"] for one in outrace("config", "show")["settings"] if one["name"] == "mode"] == ["observe"]
    assert "system/ssh.service" in package.pods()
    assert any(one["pod"].endswith("ssh.service") for one in outrace("explain")["order"])


@pytest.mark.parametrize("number", range(int(os.environ.get("OUTRACE_RACES", "2"))))
def test_a_service_at_full_speed_goes_and_all_else_stays(others: Mapping[str, int], number: int) -> None:
    if number == 0:
        package.with_options("--enforce")  # and nothing else is configured
    known, killed = package.incidents(), package.oom_kills()
    package.start_hog(400)
    live.until(package.hog_is_gone, "the eviction")
    package.evicted_alone(f"system/{UNIT}.service", known, killed)
    package.still(others)


def test_a_file_is_checked_while_it_runs_and_in_force_after_a_restart(installed: None) -> None:
    CONFIG.parent.mkdir(exist_ok=True)
    CONFIG.write_text("eviction-hard: {memory.available: 70Mi}\n")
    package.with_options(f"--config {CONFIG}")
    pid = package.main_pid("outrace")
    assert package.hard_line() == "70Mi"

    change = f"outrace config check --config {CONFIG} && systemctl restart outrace"
    CONFIG.write_text("eviction-hard: {memory.avialable: 90Mi}\n")
    refused = run("sh", "-c", change)
    assert (refused.returncode, "memory.avialable" in refused.stderr) == (2, True)
    assert (systemctl("is-active", "outrace"), package.main_pid("outrace")) == ("active", pid)

    CONFIG.write_text("eviction-hard: {memory.available: 75Mi}\n")
    run("sh", "-c", change, check=True)
    package.ready(pid)
    assert package.hard_line() == "75Mi"


def test_its_runtime_directory_is_roots_and_a_stop_leaves_no_socket_in_it(installed: None) -> None:
    found = RUN_DIR.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o700, 0)
    assert [path.suffix for path in RUN_DIR.iterdir() if path.is_socket()] == [".sock"]
    run("systemctl", "stop", "outrace", check=True)
    # The directory stays (RuntimeDirectoryPreserve=), because a daemon started by hand may have its socket there.
    assert [path for path in RUN_DIR.iterdir() if path.is_socket()] == []
    assert "daemons" not in outrace("doctor")
    run("systemctl", "start", "outrace", check=True)
    package.ready()
    assert stat.S_IMODE(RUN_DIR.stat().st_mode) == 0o700


def test_an_upgrade_in_the_middle_of_an_eviction(installed: None) -> None:
    """Its grace runs on: the next version ends it, and evicts no other pod."""
    line = int(package.available_mib() - 100)
    CONFIG.write_text(f"services: {{'{UNIT}*': {{grace: {GRACE_S}s}}}}\n")
    package.with_options(
        f"--config {CONFIG} --enforce --eviction-hard memory.available<60Mi --eviction-soft memory.available<{line}Mi"
        f" --eviction-soft-grace-period memory.available=1s --eviction-max-pod-grace-period {GRACE_S}"
    )
    known, before, killed = package.incidents(), package.main_pid("outrace"), package.oom_kills()
    package.start_hog(-200, rate=40)  # it never meets the hard threshold
    live.until(lambda: f"{UNIT}.service" in package.journal(), "SIGTERM to the hog")
    assert not package.hog_is_gone()
    first = package.invocation()
    package.install("9.0+b")
    package.ready(before)
    assert "evicted id=" not in package.journal(first), f"unpacking took longer than the grace of {GRACE_S} s"
    live.until(package.hog_is_gone, "the end of the grace", GRACE_S + TIMEOUT_S)
    assert "going on with the eviction that the daemon before had begun" in package.journal(), package.journal()
    package.evicted_alone(f"system/{UNIT}.service", known, killed)
