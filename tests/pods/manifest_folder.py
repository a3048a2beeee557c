"""A folder of manifests and a tree of cgroups."""

import json
import select
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from monitor.kernel import cgroupfs
from monitor.kernel.cgroupfs import Hierarchy
from monitor.pods.model import Change, PodSource
from monitor.pods.source import open_for
from monitor.settings.config import RunConfig
from tests.puppet import TIMEOUT_S

GI = 1 << 30


def _pod(
    name: str, cgroup: str | None = None, memory: object = "64Mi", uid: str = "", **annotations: str
) -> dict[str, object]:
    """A Pod with one container ``main``."""
    notes = annotations if cgroup is None else {"outrace/cgroup": cgroup, **annotations}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": uid or f"uid-{name}", "annotations": notes},
        "spec": {"priority": 7, "containers": [{"name": "main", "resources": {"requests": {"memory": memory}}}]},
    }


def _write(path: Path, *documents: object) -> None:
    """Write a manifest the way a careful tool does: complete under another name, then renamed."""
    text = json.dumps(documents[0]) if path.suffix == ".json" else yaml.safe_dump_all(documents)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    temporary.rename(path)


class Place:
    """A folder of manifests, and a tree of literal cgroups that they name."""

    def __init__(self, path: Path) -> None:
        self.folder, self.hierarchy = path / "pods", Hierarchy(2, path / "cg")
        self.folder.mkdir(mode=0o755)
        self.hierarchy.root.mkdir()
        (self.hierarchy.root / "cgroup.procs").touch()

    def cgroup(self, name: str) -> Path:
        """This one, and those above it."""
        path = self.hierarchy.root
        for part in Path(name).parts:
            path = path / part
            if not path.exists():
                # Made complete elsewhere and moved in: the kernel's mkdir gives a complete cgroup at once, too.
                new = self.hierarchy.root.parent / "new"
                new.mkdir()
                (new / "cgroup.procs").touch()
                new.rename(path)
        return path

    def write(self, file: str, *documents: object) -> None:
        _write(self.folder / file, *documents)

    def add(self, name: str, memory: str = "64Mi", file: str = "") -> Path:
        """A manifest and the cgroup of its name; that cgroup."""
        self.write(file or f"{name}.yaml", _pod(name, name, memory))
        return self.cgroup(name)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def folder(place: Place) -> Path:
    return place.folder


@pytest.fixture
def pods(place: Place) -> Iterator[PodSource]:
    with closing(open_for(RunConfig(pods=f"manifests:{place.folder}"), place.hierarchy, 16 * GI)) as opened:
        yield opened


def _names(change: Change) -> list[str]:
    return [found.pod.name for found in change.updated]


def manifest(folder: Path, name: str, cgroup: str | Path | None = None, uid: str = "", **annotations: str) -> None:
    """A file of its own; a path of a real cgroup is named as an annotation names it."""
    if isinstance(cgroup, Path):
        cgroup = str(cgroup.relative_to(cgroupfs.detect().root))
    _write(folder / f"{name}.json", _pod(name, cgroup, uid=uid, **annotations))


def polled(
    where: Path | str,
    node: Path | None = None,
    hierarchy: Hierarchy | None = None,
    spared: tuple[int, ...] = (),
    cgroup_root: str = "",
) -> Change:
    """What a new source finds: of a folder of manifests, or by another form of ``--pods``."""
    config = RunConfig(pods=where if isinstance(where, str) else f"manifests:{where}", cgroup_root=cgroup_root)
    with closing(open_for(config, hierarchy or cgroupfs.detect(), 16 * GI, node, spared)) as source:
        return source.poll()


def _wait(pods: PodSource) -> Change:
    """The next change, announced by the descriptor."""
    assert select.select([pods.fileno()], [], [], TIMEOUT_S)[0], "nothing is announced"
    return pods.poll()
