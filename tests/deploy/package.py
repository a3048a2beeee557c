"""The Debian package under a real systemd: what its live tests share. They change the machine."""

import json
import os
import socket
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from monitor.kernel import cgroupfs, loader, meminfo
from tests import live
from tests.commands import TIMEOUT_S, run

PACKAGES = Path(__file__).parents[2] / "packages"
OPTIONS = Path("/etc/default/outrace")
#: Where the service's programs are pinned.
INSTANCE = loader.instance_directory(Path("/var/lib/outrace"))
UNIT = "runaway"  # (`outrace*.service` is never chosen)
#: Must outlive every eviction.
OTHERS = ("ssh", "systemd-journald", "systemd-logind", "dbus", "systemd-networkd")

#: Takes MiB as fast as it can, or so many a second; ignores SIGTERM.
HOG = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
rate, most, kept = float(sys.argv[1]), int(sys.argv[2]), []
begun = time.monotonic()
while len(kept) < most:
    kept.append(b"x" * (1 << 20))
    if rate:
        time.sleep(max(0.0, begun + len(kept) / rate - time.monotonic()))
time.sleep(600)
"""


def systemctl(*words: str) -> str:
    return run("systemctl", *words).stdout.strip()


def main_pid(unit: str) -> int:
    return int(systemctl("show", "--value", "--property=MainPID", unit))


def outrace(*words: str) -> Any:
    done = run("outrace", *words, "-o", "json", env={"PATH": "/usr/bin:/bin"})  # not the tests' own run dir
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ready(since: int = 0) -> int:
    """Wait until the service answers on its socket, with another main process than ``since``; its pid."""
    live.until(lambda: systemctl("is-active", "outrace") == "active" and main_pid("outrace") != since, "the service")
    live.until(lambda: outrace("config", "show").get("daemon", {}).get("pid") == main_pid("outrace"), "its socket")
    return main_pid("outrace")


def with_options(options: str) -> None:
    since = main_pid("outrace")
    OPTIONS.write_text(f'OUTRACE_OPTIONS="{options}"\n')
    run("systemctl", "restart", "outrace", check=True)
    ready(since)


def hard_line() -> str:
    """The hard threshold of memory in force."""
    return next(
        str(one["value"])
        for one in outrace("config", "show")["thresholds"]
        if (one["signal"], one["kind"]) == ("memory.available", "hard")
    )


def hog(more: int, rate: float = 0, python: str = sys.executable) -> tuple[str, ...]:
    """The command that wants so many MiB more than there are (or fewer)."""
    return (python, "-c", HOG, str(rate), str(int(available_mib() + more)))


def start_hog(more: int, rate: float = 0) -> None:
    """As a service of its own."""
    run("systemd-run", f"--unit={UNIT}", "--collect", *hog(more, rate), check=True)


def hog_is_gone() -> bool:
    return systemctl("is-active", UNIT) != "active"


def available_mib() -> float:
    return meminfo.read()["MemAvailable"] / live.MIB


def oom_kills() -> int:
    return live.vmstat()["oom_kill"]


def incidents() -> dict[str, Any]:
    return {one["id"]: one for one in outrace("incidents", "list")["incidents"]}


def evicted_alone(pod: str, known: Collection[str], kills_before: int) -> None:
    """The incident since names this one and no other, nothing was killed by the kernel, and the memory is back."""
    new = live.until(lambda: [one for name, one in incidents().items() if name not in known], "its incident")
    assert oom_kills() == kills_before, journal()
    assert {gone["pod"] for one in new for gone in one["evicted"]} == {pod}, journal()
    live.until(lambda: available_mib() > 250, "its memory")
    with socket.create_connection(("127.0.0.1", 22), TIMEOUT_S) as ssh:
        assert ssh.recv(8).startswith(b"SSH-2.0")  # of a process that sshd starts for it


def pods() -> dict[str, Any]:
    """What `outrace top` lists, by namespace and name."""
    return {f"{one['namespace']}/{one['name']}": one for one in outrace("top", "--once")["pods"]}


def invocation() -> str:
    """What systemd calls this start of the service."""
    return systemctl("show", "--value", "--property=InvocationID", "outrace")


def journal(of: str = "") -> str:
    """Of the service since it was started last, or of another start."""
    return run("journalctl", "--no-pager", f"_SYSTEMD_INVOCATION_ID={of or invocation()}").stdout


def running() -> Mapping[str, int]:
    """The services that run, but for outrace and the one that may go, and their main processes."""
    units = systemctl("list-units", "--type=service", "--state=running", "--plain", "--no-legend", "--full")
    names = [line.split()[0] for line in units.splitlines()]
    names = [name for name in names if name not in ("outrace.service", f"{UNIT}.service")]
    # An empty line between two of them.
    pids = systemctl("show", "--value", "--property=MainPID", *names).split()
    return dict(zip(names, map(int, pids), strict=True))


def still(before: Mapping[str, int]) -> None:
    """Each of these runs on; only one that ends when it is idle (systemd-hostnamed) may have ended, and well."""
    now = running()
    for unit in before.keys() - now.keys():
        assert systemctl("show", "--value", "--property=Result", unit) == "success", unit
        assert unit.removesuffix(".service") not in OTHERS
    assert {unit: pid for unit, pid in before.items() if unit in now} == {
        unit: now[unit] for unit in before if unit in now
    }


def install(version: str) -> None:
    """One of the two packages, over the other if that is there."""
    # Compiling its bytecode and the first start take 4 minutes on an emulated CPU that others use too.
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = run("dpkg", "-i", PACKAGES / f"outrace_{version}_all.deb", env=quiet, timeout=4 * TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed() -> Iterator[None]:
    """The first package, as `apt install` leaves it; removed with all that it made."""
    if not Path("/run/systemd/system").is_dir():
        pytest.skip("process 1 is not systemd here: make test-vagrant has one")
    if not PACKAGES.is_dir():
        pytest.skip("no packages beside the checkout: make test-vagrant puts them there")
    if cgroupfs.detect().version == 1:
        pytest.skip("cgroup v1: the memory of a service of systemd's is not counted there")
    before = {unit: main_pid(unit) for unit in OTHERS}
    install("9.0+a")
    yield
    assert {unit: main_pid(unit) for unit in OTHERS} == before
    run("systemctl", "stop", UNIT)
    done = run("dpkg", "-P", "outrace")
    assert done.returncode == 0, done.stdout + done.stderr
    for left in (OPTIONS, INSTANCE, Path("/var/lib/outrace"), Path("/usr/lib/outrace"), Path("/run/outrace")):
        assert not left.exists()
    assert run("pgrep", "-f", "/usr/lib/outrace/").stdout == ""
