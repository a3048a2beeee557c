"""`outrace cleanup` on root's podman with a store on a small ext4: what goes, what stays, what comes back."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor.actions.garbage import unused_images
from monitor.actions.podman import PodmanStore
from monitor.errors import MonitorError
from tests import live
from tests.commands import run
from tests.deploy.test_capabilities import only
from tests.filesystems import Mounts
from tests.runtimes import containerd, images, podman
from tests.runtimes.podman import Podman

pytestmark = [pytest.mark.live, pytest.mark.once]
MI = 1 << 20
USED, DEAD, OLD = "localhost/used:1", "localhost/dead:1", "localhost/old:1"
CLI = (sys.executable, "-P", "-m", "monitor.cli.main", "cleanup")


@pytest.fixture
def runtime(tmp_path: Path, pause: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Podman]:
    """With the images USED, DEAD (of 2 MiB) and OLD (of 8 MiB)."""
    podman.check()
    with Mounts() as mounts, containerd.parent_cgroup() as parent:
        store = mounts.ext4("store", 64 * MI)
        with Podman(store, tmp_path / "r", parent, monkeypatch) as made:
            for name, size in ((USED, 2 * MI), (DEAD, 2 * MI), (OLD, 8 * MI)):
                made.load(images.archive(tmp_path / "image.tar", name, pause, size))
            yield made


def cleanup(what: str, *options: str, code: int = 0) -> dict[str, Any]:
    environment = {**os.environ, **live.PYTHONPATH}
    done = run(*CLI, what, "--runtime", "podman", "-o", "json", *options, env=environment)
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def fates(report: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["fate"] for one in report["items"]}


def kept(report: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["why"] for one in report["kept"]}


def test_dead_containers_then_unused_images(runtime: Podman) -> None:
    runtime.run("web", USED)
    runtime.run("job", DEAD, "6", "40")
    runtime("create", "--name=made", DEAD)
    runtime.run("always", DEAD, "0", "0", options=("--restart=on-failure",))
    runtime.run("unit", DEAD, "0", "0", options=("--label=PODMAN_SYSTEMD_UNIT=unit.service",))
    runtime.run("never", DEAD, "0", "0", options=("--label=outrace/never=true",))
    runtime.run("paused", USED)
    runtime("tag", OLD, "localhost/old:2")
    runtime("pause", "paused")
    try:
        looked = cleanup("containers")
        assert fates(looked) == {"job": "would go"}
        assert 6 * MI <= looked["bytes"] < 7 * MI
        assert kept(looked) == {
            "made": "it has not exited",
            "paused": "it has not exited",
            "always": "restart policy on-failure",
            "unit": "systemd starts it (unit.service)",
            "never": "label outrace/never",
        }
        removed = cleanup("containers", "--remove")
    finally:
        runtime("unpause", "paused")
    assert fates(removed) == {"job": "removed"}
    (freed,) = removed["freed"]
    assert freed["bytes"] >= 6 * MI
    assert freed["inodes"] >= 40
    assert runtime.names() == {"web", "made", "always", "unit", "never", "paused"}

    removed = cleanup("images", "--remove")
    assert [one["fate"] for one in removed["items"]] == ["removed"]  # by one id, with both names
    assert removed["freed"][0]["bytes"] >= 8 * MI
    assert runtime.image_names() == {USED, DEAD}
    assert runtime.state("web") == "running"
    runtime.run("again", DEAD, "0", "0")


def test_a_pod_goes_as_a_whole_once_nobody_in_it_runs(runtime: Podman) -> None:
    holder = (f"--infra-image={USED}", "--infra-command=/pause", f"--cgroup-parent={runtime.parent}")
    runtime("pod", "create", "--name=shop", "--network=host", *holder)
    runtime("run", "--detach", "--pod=shop", "--name=cart", DEAD, "1", "5")
    live.until(lambda: runtime.state("cart") in ("exited", "stopped"), "the end of cart")
    looked = cleanup("containers")
    assert looked["items"] == []  # what holds its namespaces runs
    assert kept(looked) == {"cart": "its pod runs"}
    runtime("pod", "stop", "-t0", "shop")
    removed = cleanup("containers", "--remove")
    assert [(one["kind"], one["name"], one["fate"]) for one in removed["items"]] == [("pod", "shop", "removed")]
    assert removed["bytes"] >= MI
    assert runtime.names() == set()
    assert runtime("pod", "ps", "-q") == ""


def test_with_the_capabilities_of_the_unit(runtime: Podman) -> None:
    """podman alone, without one of them, removes half of a layer and then cannot be used without it any more."""
    unit = (live.ROOT / "deploy/systemd/outrace.service").read_text()
    (names,) = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    ours = [name.removeprefix("CAP_") for name in names.split()]
    runtime.run("job", DEAD, "1", "5")
    mounted = Path(runtime("mount", "job"))
    (mounted / "tmp").mkdir()
    (mounted / "tmp").chmod(0o1777)
    (mounted / "tmp" / "file").touch()
    for path in (mounted / "tmp" / "file", mounted / "tmp"):
        os.chown(path, 12345, 12345)
    runtime("umount", "job")
    command = [*CLI, "containers", "--runtime", "podman", "--remove"]
    environment = {**os.environ, **live.PYTHONPATH}
    without = only(*(name for name in ours if name != "FOWNER"))
    done = run(*without, "setpriv", "--no-new-privs", *command, env=environment)
    assert (done.returncode, done.stdout) == (3, "")
    assert "CAP_FOWNER" in done.stderr
    assert runtime.names() == {"job"}
    done = run(*only(*ours), "setpriv", "--no-new-privs", *command, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert runtime.names() == set()


def test_an_image_with_a_label_stays(runtime: Podman, tmp_path: Path) -> None:
    runtime("create", "--name=made", OLD)
    runtime("commit", "--change=LABEL outrace/never=true", "made", "localhost/kept:1")
    runtime("rm", "made")
    assert kept(cleanup("images"))["localhost/kept:1"] == "label outrace/never"
    assert {USED, DEAD} <= fates(cleanup("images", "--remove")).keys()
    # With the image it was made of, whose layers are its own.
    assert "localhost/kept:1" in runtime.image_names()
    assert not {USED, DEAD} & runtime.image_names()


def test_podman_is_missing_or_fails(runtime: Podman, tmp_path: Path) -> None:
    def said(code: int) -> str:
        environment = {**os.environ, **live.PYTHONPATH}
        done = run(*CLI, "images", "--runtime", "podman", "--within", "1", env=environment)
        assert (done.returncode, done.stdout) == (code, "")
        (line,) = done.stderr.splitlines()
        return line

    with pytest.MonkeyPatch.context() as broken:
        broken.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "none"))
        assert said(1).endswith('none: no such file or directory"')
        stub = tmp_path / "bin"
        stub.mkdir()
        broken.setenv("PATH", str(stub))
        assert said(3) == "outrace: error: there is no command podman here; install it, or name another runtime"
        (stub / "podman").symlink_to("/bin/sleep")  # takes `info` for a time: it ends at once
        assert said(1).startswith("outrace: error: podman info: ")
        (stub / "podman").unlink()
        (stub / "podman").write_text("#!/bin/sh\nexec /bin/sleep 600\n")
        (stub / "podman").chmod(0o755)
        assert said(1) == "outrace: error: podman info does not end; is another podman at work?"


def test_an_image_that_a_container_has_as_a_volume_stays(runtime: Podman) -> None:
    """podman 4.3 removes it, and the directory in the running container is empty then."""
    mount = ("--mount", f"type=image,source={OLD},destination=/volume")
    runtime.run("web", USED, options=mount)
    assert set(fates(cleanup("images", "--remove"))) == {DEAD}
    assert runtime.image_names() == {USED, OLD}
    pid = runtime("container", "inspect", "--format", "{{.State.Pid}}", "web")
    assert Path(f"/proc/{pid}/root/volume/ballast").stat().st_size == 8 * MI


def test_a_name_that_is_another_images_by_now_removes_nothing_of_it(runtime: Podman) -> None:
    """A newer image of the same name was pulled between the choice and the removal."""
    with PodmanStore(time.monotonic() + live.TIMEOUT_S) as store:
        by_name = {one.name: one for one in unused_images(store.images(), store.used()).go}
        runtime("tag", DEAD, OLD)
        store.remove(by_name[OLD])
        assert runtime.image_names() == {USED, DEAD, OLD}
        runtime("tag", USED, "localhost/used:2")
        (used,) = (one for one in unused_images(store.images(), store.used()).go if one.name.startswith("localhost/us"))
        runtime("tag", DEAD, "localhost/used:2")
        with pytest.raises(MonitorError, match="another image's"):
            store.remove(used)
        assert runtime.image_names() == {USED, DEAD, OLD, "localhost/used:2"}


def test_a_pod_that_systemd_starts_stays(runtime: Podman) -> None:
    """The label is on the container that holds the namespaces, where systemd made the pod alone."""
    holder = (f"--infra-image={USED}", "--infra-command=/pause", f"--cgroup-parent={runtime.parent}")
    with pytest.MonkeyPatch.context() as unit:
        unit.setenv("PODMAN_SYSTEMD_UNIT", "shop\x1b[2J.service")
        runtime("pod", "create", "--name=shop", "--network=host", *holder)
    runtime("run", "--detach", "--pod=shop", "--name=cart", DEAD, "0", "0")
    runtime("pod", "stop", "-t0", "shop")
    looked = cleanup("containers")
    assert (looked["items"], kept(looked)) == ([], {"cart": "systemd starts it (shop\\x1b[2J.service)"})


def test_sizes_that_podman_cannot_say_are_not_needed(runtime: Podman, tmp_path: Path) -> None:
    runtime.run("job", DEAD, "1", "5")
    wrapper = tmp_path / "bin" / "podman"
    wrapper.parent.mkdir()
    refusal = 'case "$*" in *--size*) echo layer not known >&2; exit 125;; esac'
    wrapper.write_text(f'#!/bin/sh\n{refusal}\nexec {shutil.which("podman")} "$@"\n')
    wrapper.chmod(0o755)
    with pytest.MonkeyPatch.context() as path:
        path.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
        removed = cleanup("containers", "--remove")
    assert (fates(removed), removed["unknown_size"]) == ({"job": "removed"}, 1)


@pytest.mark.parametrize(
    "answer", ["", "[]", "{}", '{"store": 1}', "[" * 100_000, '{"store": {"graphRoot": "/"}, "host": 0}']
)
def test_an_answer_that_is_none_is_one_line(tmp_path: Path, answer: str) -> None:
    (tmp_path / "answer").write_text(answer)
    (tmp_path / "podman").write_text(f"#!/bin/sh\nexec /bin/cat {tmp_path}/answer\n")
    (tmp_path / "podman").chmod(0o755)
    environment = {**os.environ, **live.PYTHONPATH, "PATH": str(tmp_path)}
    done = run(*CLI, "containers", "--runtime", "podman", env=environment)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert "report this, with podman's version" in done.stderr


def test_a_podman_that_asks_another_service_is_none_of_ours(tmp_path: Path) -> None:
    host = {"serviceIsRemote": True, "security": {"rootless": False}}
    (tmp_path / "answer").write_text(json.dumps({"store": {"graphRoot": "/"}, "host": host}))
    (tmp_path / "podman").write_text(f"#!/bin/sh\nexec /bin/cat {tmp_path}/answer\n")
    (tmp_path / "podman").chmod(0o755)
    environment = {**os.environ, **live.PYTHONPATH, "PATH": str(tmp_path)}
    done = run(*CLI, "images", "--runtime", "podman", "--remove", env=environment)
    assert (done.returncode, done.stdout) == (3, "")
    assert "podman asks another service" in done.stderr


def test_no_variable_leads_podman_to_another_service(runtime: Podman, tmp_path: Path) -> None:
    environment = {**os.environ, **live.PYTHONPATH, "CONTAINER_HOST": f"unix://{tmp_path}/podman.sock"}
    done = run(*CLI, "images", "--runtime", "podman", "-o", "json", env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert runtime.image_names() == {USED, DEAD, OLD} == fates(found).keys() | kept(found).keys()


def test_a_user_without_root_has_a_store_of_his_own(runtime: Podman) -> None:
    """It is never looked into: the daemon's podman is root's."""
    info = json.loads(subprocess.run(["podman", "info", "--format", "json"], capture_output=True, check=True).stdout)
    assert info["host"]["security"]["rootless"] is False
    assert info["store"]["graphRoot"] == f"{runtime.base}/root"
