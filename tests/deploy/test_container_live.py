"""The package beside podman, as Debian has it: containers go by their names, and only the one that grows."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import live
from tests.commands import run
from tests.deploy import package
from tests.deploy.package import installed as installed
from tests.deploy.package import outrace

pytestmark = pytest.mark.kernel

STAY = Path("/etc/containers/containers.conf.d/outrace-tests.conf")
#: Directories of the image: its programs are the machine's own, so that nothing is taken from a network.
LINKS = ("bin", "lib", "lib64", "sbin")
RUN = ("run", "--detach", "--network=host", "--volume=/usr:/usr:ro")


def podman(*words: str) -> str:
    done = run("podman", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def containers(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """podman's socket, an image that was made here, and two containers that have to stay, one of them in a pod."""
    if run("which", "podman", "crun").returncode != 0:
        pytest.skip("no podman or crun: the box of make test-vagrant has both")
    archive = tmp_path_factory.mktemp("image") / "lab.tar"
    with tarfile.open(archive, "w") as tar:
        for name in LINKS:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
        for name in ("begin", "tmp", "usr"):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(directory)
    # It ends when no request has come for 5 s, and an emulated start takes longer than outrace waits.
    STAY.parent.mkdir(parents=True, exist_ok=True)
    STAY.write_text("[engine]\nservice_timeout = 0\n")
    run("systemctl", "start", "podman.socket", "podman.service", check=True)
    try:
        podman("import", str(archive), "lab")
        podman(*RUN, "--name=web", "lab", "/usr/bin/sleep", "infinity")
        podman("pod", "create", "--name=shop", "--network=host")
        podman(*RUN[:2], RUN[-1], "--pod=shop", "--name=cart", "lab", "/usr/bin/sleep", "infinity")
        yield
    finally:
        run("podman", "pod", "rm", "--all", "--force", "--time=0")
        run("podman", "rm", "--all", "--force", "--time=0")
        run("podman", "rmi", "--all", "--force")
        run("systemctl", "stop", "podman.socket", "podman.service")
        STAY.unlink()


def test_a_container_that_grows_is_evicted_and_named_by_its_name(containers: None, tmp_path: Path) -> None:
    package.with_options("--enforce")
    others = package.running()
    # It grows once it is known: without labels from podman outrace evicts no pod, and here they take seconds.
    grow = ("sh", "-c", 'until [ -e /begin/now ]; do sleep 0.2; done; exec "$@"', "sh")
    hog = package.hog(400, python="/usr/bin/python3")
    podman(*RUN, f"--volume={tmp_path}:/begin:ro", "--name=batch", "lab", *grow, *hog)
    wanted = {f"podman/{name}" for name in ("web", "shop", "batch")}
    live.until(lambda: wanted <= package.pods().keys(), lambda: f"{sorted(package.pods())}")
    known, killed = package.incidents(), package.oom_kills()
    (tmp_path / "now").touch()
    package.evicted_alone("podman/batch", known, killed)
    live.until(lambda: state("batch") == "exited", "podman to see that it is gone")
    assert {name: state(name) for name in ("web", "cart")} == {"web": "running", "cart": "running"}
    package.still(others)
    shown = run("outrace", "incidents", "list", env={"PATH": "/usr/bin:/bin"}).stdout
    assert "podman/batch" in shown


def state(name: str) -> str:
    return podman("inspect", "--format={{.State.Status}}", name)


def test_top_and_explain_name_a_container_that_grows_slowly(containers: None) -> None:
    podman(*RUN, "--name=slow", "--label=outrace/priority=-7", "lab", *package.hog(-400, 20, "/usr/bin/python3"))
    live.until(lambda: "podman/slow" in package.pods(), lambda: f"{sorted(package.pods())}")

    def next_to_go() -> str:
        return next((one["pod"] for one in outrace("explain")["order"] if not one["critical"]), "")

    live.until(lambda: next_to_go() == "podman/slow", "podman to tell its labels")
    assert "podman/slow" in run("outrace", "top", "--once", env={"PATH": "/usr/bin:/bin"}).stdout
