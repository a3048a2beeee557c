"""The package on a desktop: an app of a logged-in user grows, and goes; the session and the other apps stay.

The session is logind's: PAM opens it for a service (as for `cage`, which is a desktop of one window), systemd starts
the user's own manager and bus, and apps are scopes below app.slice, as GNOME and KDE make them.
"""

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from monitor.kernel import cgroup_procs
from tests import live
from tests.commands import TIMEOUT_S, run
from tests.deploy import package
from tests.deploy.package import installed as installed
from tests.deploy.package import outrace

pytestmark = pytest.mark.kernel

USER = "desk"
BROWSER = "app-browser-1234.scope"


@dataclass(frozen=True)
class Desktop:
    """A logged-in user, by ``uid``; ``session`` is logind's name of the session."""

    uid: int
    session: str
    apps: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def leader(self) -> int:
        return int(self.shows("Leader"))

    def shows(self, what: str) -> str:
        return run("loginctl", "show-session", "--value", f"--property={what}", self.session).stdout.strip()

    def command(self, *words: str) -> tuple[str, ...]:
        runtime = f"/run/user/{self.uid}"
        bus = f"DBUS_SESSION_BUS_ADDRESS=unix:path={runtime}/bus"
        return ("runuser", "-u", USER, "--", "env", f"XDG_RUNTIME_DIR={runtime}", bus, *words)

    def app(self, unit: str, *command: str) -> subprocess.Popen[bytes]:
        """A process of this user in a scope of its own, as a desktop starts an app."""
        scope = ("systemd-run", "--user", "--scope", "--quiet", f"--unit={unit}", "--slice=app.slice", "--collect")
        started = subprocess.Popen(
            self.command(*scope, *command), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/"
        )
        self.apps.append(started)
        live.until(lambda: self.processes(f"user@{self.uid}.service/app.slice/{unit}"), f"{unit} to run")
        return started

    def processes(self, below: str) -> list[int]:
        group = Path(f"/sys/fs/cgroup/user.slice/user-{self.uid}.slice") / below
        return sorted(cgroup_procs.processes(group)) if group.is_dir() else []

    def everything(self) -> Mapping[str, list[int]]:
        """The session's own, the manager, its bus, and the apps that have to stay."""
        manager = f"user@{self.uid}.service"
        bus = self.command("systemctl", "--user", "show", "--value", "--property=ControlGroup", "dbus.service")
        slice_ = f"/user.slice/user-{self.uid}.slice/"
        found = {
            name: self.processes(name)
            for name in (
                f"session-{self.session}.scope",
                f"{manager}/init.scope",
                run(*bus).stdout.strip().removeprefix(slice_),
                f"{manager}/app.slice/app-editor-77.scope",
                f"{manager}/app.slice/app-mail-5.scope",
            )
        }
        assert all(found.values()), found
        return found


@pytest.fixture(scope="module")
def desktop(installed: None) -> Iterator[Desktop]:
    if run("which", "loginctl").returncode != 0:
        pytest.skip("no logind here")
    run("useradd", "--create-home", USER, check=True)
    uid = int(run("id", "-u", USER, check=True).stdout)
    session = ("--property=PAMName=su", f"--property=User={USER}", "--setenv=XDG_SESSION_TYPE=wayland")
    run("systemd-run", "--unit=desktop-login", "--collect", *session, "/usr/bin/sleep", "infinity", check=True)
    try:
        name = live.until(lambda: of_user(uid), "logind's session")
        live.until(Path(f"/run/user/{uid}/bus").exists, "the bus of the user's manager")
        made = Desktop(uid, name)
        yield made
        for app in made.apps:
            app.terminate()
            app.wait(TIMEOUT_S)
    finally:
        run("systemctl", "stop", "desktop-login")
        run("loginctl", "terminate-user", USER)
        live.until(lambda: run("pgrep", "--uid", str(uid)).returncode == 1, "the end of the user's last process")
        run("userdel", "--remove", USER, check=True)


def of_user(uid: int) -> str:
    """The user's session with a leader; "" if there is none (since systemd 256 the manager has a session as well)."""
    for line in run("loginctl", "list-sessions", "--no-legend").stdout.splitlines():
        name, owner = line.split()[:2]
        if owner == str(uid) and Path(f"/sys/fs/cgroup/user.slice/user-{uid}.slice/session-{name}.scope").is_dir():
            return name
    return ""


@pytest.mark.parametrize("number", range(3))
def test_the_browser_goes_and_the_session_stays(desktop: Desktop, number: int) -> None:
    if number == 0:
        package.with_options("--enforce")
        for unit in ("app-editor-77.scope", "app-mail-5.scope"):
            desktop.app(unit, "/usr/bin/sleep", "infinity")
    assert desktop.shows("Type") == "wayland"
    leader, before, others = desktop.leader, desktop.everything(), package.running()
    assert leader in before[f"session-{desktop.session}.scope"]
    known, killed = package.incidents(), package.oom_kills()
    browser = desktop.app(BROWSER, *package.hog(400, python="/usr/bin/python3"))
    assert browser.wait(TIMEOUT_S) != 0
    package.evicted_alone(f"user-{desktop.uid}/{BROWSER}", known, killed)
    assert (desktop.leader, desktop.shows("State")) == (leader, "active")
    assert desktop.everything() == before
    package.still(others)


def test_explain_says_why_the_session_stays_and_the_apps_may_go(desktop: Desktop) -> None:
    session = outrace("explain", f"user-{desktop.uid}/session-{desktop.session}.scope")
    assert "a login session: its leader is in it" in str(session)
    may_go = {one["pod"] for one in outrace("explain")["order"] if not one["critical"]}
    assert f"user-{desktop.uid}/app-editor-77.scope" in may_go
    assert not may_go & {"system/ssh.service", "system/dbus.service", f"user-{desktop.uid}/init.scope"}
