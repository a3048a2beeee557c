"""`outrace cleanup` on the distribution's containerd with a store on a small ext4: what goes, stays, comes back."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from monitor.actions.cri import CriStore
from monitor.actions.garbage import CONTAINER, POD, Garbage
from monitor.errors import MonitorError
from monitor.pods.stores import parse_store
from tests import live
from tests.commands import run
from tests.filesystems import Mounts
from tests.runtimes import containerd, images
from tests.runtimes.containerd import Containerd

pytestmark = [pytest.mark.live, pytest.mark.once]
MI = 1 << 20
PAUSE, USED, DEAD, OLD = "localhost/holder:1", "localhost/used:1", "localhost/dead:1", "localhost/old:1"
CLI = (sys.executable, "-P", "-m", "monitor.cli.main", "cleanup")


@pytest.fixture
def runtime(tmp_path: Path, pause: Path) -> Iterator[Containerd]:
    """With the images PAUSE, USED, DEAD (of 2 MiB) and OLD (of 8 MiB)."""
    containerd.check()
    with Mounts() as mounts, containerd.parent_cgroup() as parent:
        store = mounts.ext4("store", 64 * MI)
        with Containerd(store, tmp_path / "r", parent) as made:
            for name, size in ((PAUSE, 0), (USED, 2 * MI), (DEAD, 2 * MI), (OLD, 8 * MI)):
                made.load(images.archive(tmp_path / "image.tar", name, pause, size))
            yield made


def cleanup(made: Containerd, what: str, *options: str, code: int = 0) -> dict[str, Any]:
    done = run(*CLI, what, "--runtime", made.word, "-o", "json", *options, env=environment())
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def environment() -> dict[str, str]:
    return {**os.environ, **live.PYTHONPATH}


def fates(report: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["fate"] for one in report["items"]}


def fill(path: Path) -> None:
    """Write until there is no room, for root either."""
    with open(path, "wb", buffering=0) as file:
        for size in (MI, 4096, 1):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


def free(made: Containerd) -> tuple[int, int]:
    seen = os.statvfs(made.base)
    return seen.f_bavail * seen.f_frsize, seen.f_ffree


def test_dead_containers_then_unused_images(runtime: Containerd) -> None:
    web, job = runtime.pod("web"), runtime.pod("job")
    web.run("app", USED)
    web.run("app", USED, "0", "0", attempt=1)
    web.run("once", DEAD, "0", "0")
    web.run("once", DEAD, "0", "0", attempt=1)
    web.run("ready", USED, start=False)
    job.run("job", DEAD, "6", "40")
    job.stop()
    log = runtime.state / "logs" / "job" / "job.0.log"
    log.with_name(f"{log.name}.20260101").write_text("rotated\n")

    looked = cleanup(runtime, "containers")
    expected = ["once", "job", "lab/job"]
    assert [one["name"] for one in looked["items"]] == expected
    assert set(fates(looked).values()) == {"would go"}
    assert {one["name"] for one in looked["kept"]} == {"app", "once", "ready"}
    assert looked["freed"] is None
    assert len(runtime.containers()) == 6

    before = free(runtime)
    removed = cleanup(runtime, "containers", "--remove")
    assert (removed["count"], removed["removed"], removed["problems"]) == (3, 3, [])
    assert set(fates(removed).values()) == {"removed"}
    assert runtime.containers().keys() == {"app/0", "app/1", "once/1", "ready/0"}
    assert runtime.sandboxes() == {"web"}
    assert list(log.parent.glob("*")) == []
    # Here at once: containerd itself gives them back up to seconds later.
    bytes_back, inodes_back = (now - then for now, then in zip(free(runtime), before, strict=True))
    (freed,) = removed["freed"]
    assert 6 * MI <= freed["bytes"] <= bytes_back + MI
    assert 40 <= freed["inodes"] <= inodes_back + 20

    looked = cleanup(runtime, "images")
    assert fates(looked) == {OLD: "would go"}
    assert looked["bytes"] > 8 * MI
    assert {one["name"]: one["why"] for one in looked["kept"]} == {PAUSE: "the image of sandboxes"}
    removed = cleanup(runtime, "images", "--remove")
    assert fates(removed) == {OLD: "removed"}
    (freed,) = removed["freed"]
    assert freed["bytes"] > 16 * MI  # what was loaded, and what was unpacked of it
    assert runtime.image_names() == {PAUSE, USED, DEAD}
    # What runs has not noticed, and its images can be used again.
    assert runtime.containers()["app/0"] == runtime.api.CONTAINER_RUNNING
    runtime.pod("more").run("app", DEAD)


def test_what_runs_again_by_the_time_of_its_removal_stays(runtime: Containerd) -> None:
    """Others may need minutes to go, and a runtime may be started again meanwhile."""
    web = runtime.pod("web")
    ident = web.run("app", USED)
    empty = runtime.pod("empty")
    log = runtime.state / "logs" / "web" / "app.0.log"
    with CriStore(parse_store(runtime.word), time.monotonic() + live.TIMEOUT_S) as store:
        for pod in (web, empty):
            with pytest.raises(MonitorError, match="used again"):
                store.remove(Garbage(POD, pod.id, "x"))
        store.remove(Garbage(CONTAINER, ident, "app"))
    assert runtime.containers()["app/0"] == runtime.api.CONTAINER_RUNNING
    assert log.exists()
    ready = [one.state for one in runtime.runtime.ListPodSandbox(runtime.api.ListPodSandboxRequest()).items]
    assert ready == [runtime.api.SANDBOX_READY] * 2


def test_an_image_goes_with_the_last_container_that_used_it(runtime: Containerd) -> None:
    job = runtime.pod("job")
    job.run("job", DEAD, "0", "0")
    assert fates(cleanup(runtime, "images")).keys() == {USED, OLD}  # a dead container's stays
    job.stop()
    cleanup(runtime, "containers", "--remove")
    assert fates(cleanup(runtime, "images", "--remove")).keys() == {USED, OLD, DEAD}
    assert runtime.image_names() == {PAUSE}


def test_of_a_pod_of_a_kubelet_the_last_containers_stay(runtime: Containerd) -> None:
    pod = runtime.pod("job", **{"io.kubernetes.pod.uid": "uid-job"})
    for attempt in range(2):
        pod.run("job", DEAD, "0", "0", attempt=attempt)
    pod.stop()
    kept = runtime.pod("kept", **{"outrace/never": "true"})
    kept.run("kept", DEAD, "0", "0")
    kept.stop()
    removed = cleanup(runtime, "containers", "--remove")
    assert [one["fate"] for one in removed["items"]] == ["removed"]
    assert runtime.containers().keys() == {"job/1", "kept/0"}
    assert runtime.sandboxes() == {"job", "kept"}


def test_an_image_that_has_just_come_stays_until_it_is_old(runtime: Containerd, tmp_path: Path, pause: Path) -> None:
    seen = tmp_path / "seen.json"
    cleanup(runtime, "images", "--seen", str(seen))
    new = "localhost/new:1"
    runtime.load(images.archive(tmp_path / "image.tar", new, pause, MI))
    removed = cleanup(runtime, "images", "--remove", "--seen", str(seen))
    assert fates(removed).keys() == {USED, OLD, DEAD}
    assert {one["name"]: one["why"] for one in removed["kept"]}[new] == "first seen less than 120 s ago"
    known = json.loads(seen.read_text())
    assert len(known) == 2  # with the image of sandboxes
    seen.write_text(json.dumps({ident: at - 121 for ident, at in known.items()}))
    assert fates(cleanup(runtime, "images", "--remove", "--seen", str(seen))) == {new: "removed"}


def test_a_store_that_is_full_to_the_last_byte(runtime: Containerd, tmp_path: Path) -> None:
    """containerd writes its own database before it removes anything."""
    job = runtime.pod("job")
    job.run("job", DEAD, "2", "0")
    job.stop()
    fill(runtime.base / "ballast")
    assert free(runtime)[0] == 0
    assert fates(cleanup(runtime, "containers", "--remove")) == {"job": "removed", "lab/job": "removed"}
    assert fates(cleanup(runtime, "images", "--remove")).keys() == {USED, OLD, DEAD}
    assert free(runtime)[0] > 20 * MI


def test_a_clean_up_that_is_killed_is_begun_again(runtime: Containerd) -> None:
    """kill -9 in the middle: what is gone is gone, the rest is there and whole."""
    pods = [runtime.pod(f"job{n}") for n in range(6)]
    for pod in pods:
        pod.run("job", DEAD, "1", "5")
        pod.stop()
    command = [*CLI, "containers", "--runtime", runtime.word, "--remove"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL) as child:
        live.until(lambda: len(runtime.sandboxes()) < 6 or child.poll() is not None, "the first to go")
        child.send_signal(signal.SIGKILL)
    removed = cleanup(runtime, "containers", "--remove")
    assert removed["problems"] == []
    assert runtime.containers() == {}
    assert runtime.sandboxes() == set()


def dying(runtime: Containerd) -> dict[str, Any]:
    """The report of a clean-up of six pods in which containerd was killed when the first was gone."""
    for number in range(6):
        runtime.dead(f"job{number}", DEAD, 1, 5)
    command = [*CLI, "containers", "--runtime", runtime.word, "--remove", "-o", "json"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        live.until(lambda: len(runtime.containers()) < 6 or child.poll() is not None, "the first to go")
        runtime.kill()
        out, err = child.communicate(timeout=live.TIMEOUT_S)
    runtime.start()
    assert err == b""
    report: dict[str, Any] = json.loads(out)
    assert child.returncode == (report["removed"] < report["count"])
    return report


def test_a_runtime_that_dies_in_the_middle(runtime: Containerd) -> None:
    """What is left says so, in one report; the next clean-up takes it."""
    # On a busy machine the clean-up may have been done before the kill.
    reports = (dying(runtime) for _ in range(5))
    report = next(found for found in reports if found["removed"] < found["count"])
    assert report["removed"] > 0
    assert "UNAVAILABLE" in report["problems"][0]
    assert {"removed", "failed"} == set(fates(report).values())
    assert cleanup(runtime, "containers", "--remove")["problems"] == []
    assert (runtime.containers(), runtime.sandboxes()) == ({}, set())


# --- a runtime that does not do as it should ------------------------------------------------------------------------
def refused(*options: str, code: int) -> str:
    done = run(*CLI, *options, env=environment())
    assert (done.returncode, done.stdout) == (code, "")
    (line,) = done.stderr.splitlines()
    return line


def test_a_runtime_that_hangs(tmp_path: Path) -> None:
    pytest.importorskip("cri_api", reason="no stubs of CRI: pip install 'outrace[cri]'")
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        line = refused("images", "--runtime", f"cri:unix://{path}", "--within", "1", code=1)
    assert line == f"outrace: error: cri:unix://{path} does not answer (Version); look at the runtime's log"


def test_a_runtime_that_goes_away_while_it_is_asked(tmp_path: Path) -> None:
    pytest.importorskip("cri_api", reason="no stubs of CRI: pip install 'outrace[cri]'")
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        line = refused("images", "--runtime", f"cri:unix://{path}", "--within", "5", code=1)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(live.TIMEOUT_S)
    assert line.startswith(f"outrace: error: cri:unix://{path}: Version: UNAVAILABLE: ")


def test_no_runtime_no_socket_no_permission(tmp_path: Path) -> None:
    pytest.importorskip("cri_api", reason="no stubs of CRI: pip install 'outrace[cri]'")
    path = tmp_path / "none"
    store = ("images", "--runtime", f"cri:unix://{path}")
    assert refused(*store, code=3).endswith(f"{path}: No such file or directory; is the runtime running?")
    path.write_text("")
    assert f"{path} is no socket" in refused(*store, code=3)
    if os.geteuid() != 0:
        return
    path.unlink()
    tmp_path.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        code = (
            "import os, sys; from monitor.cli.main import main; "
            "os.setuid(65534); sys.exit(main(['cleanup', *sys.argv[1:]]))"
        )
        done = run(sys.executable, "-c", code, *store, env=environment())
    assert done.returncode == 3, done.stderr
    assert "Permission denied" in done.stderr or "may not be used by this user; run it as root" in done.stderr


def test_without_the_stubs_the_remedy_is_said(tmp_path: Path) -> None:
    (tmp_path / "cri_api.py").write_text("raise ModuleNotFoundError(\"No module named 'cri_api'\")\n")
    path = f"{tmp_path}{os.pathsep}{live.PYTHONPATH['PYTHONPATH']}"
    done = run(*CLI, "images", "--runtime", f"cri:unix://{tmp_path}", env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 3
    assert "needs the Python package container-runtime-interface-api" in done.stderr
    assert "-m pip install 'container-runtime-interface-api>=" in done.stderr
