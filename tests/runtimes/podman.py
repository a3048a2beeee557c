"""The distribution's podman with a store of its own, as the daemon finds it: by the environment."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from monitor.kernel import cgroupfs
from monitor.lab import janitor
from tests import live
from tests.own_cgroups import removed_with_session

#: podman needs a runtime that knows this machine's cgroups, and the pause of its pods.
NEEDED = {"podman": "podman", "runc": "runc", "catatonit": "catatonit"}


def need(programs: Mapping[str, str], path: str | None = None) -> None:
    """Skip the test where one of the programs (name -> package) is missing, or root's rights are."""
    if os.geteuid() != 0:
        pytest.skip("not root: cannot run containers")
    if missing := sorted({package for name, package in programs.items() if not shutil.which(name, path=path)}):
        pytest.skip(f"apt-get install --no-install-recommends {' '.join(missing)}")


def check() -> None:
    """Skip the test where podman cannot be had."""
    need(NEEDED, path=f"{os.environ['PATH']}:/usr/libexec/podman")


@contextmanager
def parent_cgroup() -> Iterator[str]:
    """A cgroup for pods, by its path in every hierarchy."""
    with live.cgroup("podman") as path:
        # Runtimes make it in the other controllers' trees of cgroup v1 as well.
        others = [root / path.name for root in cgroupfs.detect().root.parent.glob("*/") if root / path.name != path]
        for other in others:
            removed_with_session(other)
        try:
            yield f"/{path.name}"
        finally:
            removed = [janitor.remove_tree(str(other)) for other in others]  # all, whatever becomes of the first
            assert all(removed), "a cgroup of a runtime is still used"


class Podman:
    """Context manager: podman with images and containers below ``base`` and what it forgets in ``state``."""

    def __init__(
        self, base: Path, state: Path, parent: str, environment: pytest.MonkeyPatch, driver: str = "overlay"
    ) -> None:
        self.base, self._state, self.parent = base, state, parent
        self._environment, self._driver = environment, driver

    def __enter__(self) -> Self:
        self._state.mkdir(parents=True, exist_ok=True)
        storage, containers = self._state / "storage.conf", self._state / "containers.conf"
        storage.write_text(
            f'[storage]\ndriver="{self._driver}"\ngraphroot="{self.base}/root"\nrunroot="{self._state}/run"\n'
        )
        # What it asks for by itself, 2^20 descriptors, takes CAP_SYS_RESOURCE.
        containers.write_text(
            '[containers]\ndefault_ulimits=["nofile=1024:1024", "nproc=1024:1024"]\n'
            '[engine]\nruntime="runc"\ncgroup_manager="cgroupfs"\nevents_logger="file"\n'
            f'tmp_dir="{self._state}/tmp"\n'
        )
        self._environment.setenv("CONTAINERS_STORAGE_CONF", str(storage))
        self._environment.setenv("CONTAINERS_CONF", str(containers))
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        mount = self.base / "root" / "overlay"
        subprocess.run(["umount", mount], stderr=subprocess.DEVNULL, check=False)  # podman's own, on itself

    def clear(self) -> None:
        self("pod", "rm", "-af", "-t", "0")
        self("rm", "-af", "-t", "0")

    def __call__(self, *arguments: str, within: Sequence[Path] = ()) -> str:
        """``within``: the directories of the cgroup to do it from."""
        enter = ["sh", "-ec", 'for i in $0; do echo 0 > "$i/cgroup.procs"; done; exec "$@"', " ".join(map(str, within))]
        command = [*(enter if within else ()), "podman", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=live.TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def load(self, archive: Path) -> None:
        self("load", "-i", str(archive))

    def run(self, name: str, image: str, *arguments: str) -> None:
        """A container; with ``arguments`` (MiB and files to write) its program ends."""
        fixed = ("--detach", "--network=host", f"--cgroup-parent={self.parent}", f"--name={name}")
        self("run", *fixed, image, *arguments)
        if arguments:
            # "stopped" until podman has tidied up, which it may never do.
            live.until(lambda: self.state(name) in ("exited", "stopped"), f"the end of {name}")

    def state(self, name: str) -> str:
        return self("container", "inspect", "--format", "{{.State.Status}}", name)

    def names(self) -> set[str]:
        """Names of the containers there are."""
        return {name for one in self._list("ps", "--all") for name in one["Names"]}

    def image_names(self) -> set[str]:
        return {name for one in self._list("images") for name in one["Names"]}

    def _list(self, *arguments: str) -> list[dict[str, Any]]:
        return json.loads(self(*arguments, "--format", "json") or "[]")
