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


def _pod(name: str, cgroup: str | None = None, memory: object = "64Mi", **annotations: str) -> dict[str, object]:
    """A Pod with one container ``main``; further annotations are container cgroups."""
    notes = {f"outrace/cgroup.{k}": v for k, v in annotations.items()}
    if cgroup is not None:
        notes["outrace/cgroup"] = cgroup
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": f"uid-{name}", "annotations": notes},
        "spec": {"priority": 7, "containers": [{"name": "main", "resources": {"requests": {"memory": memory}}}]},
    }


def _write(path: Path, *documents: object) -> None:
    """Write a manifest the way a careful tool does: complete under another name, then renamed."""
    text = json.dumps(documents[0]) if path.suffix == ".json" else yaml.safe_dump_all(documents)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    temporary.rename(path)


@pytest.fixture
def hierarchy(tmp_path: Path) -> Hierarchy:
    root = tmp_path / "cg"
    root.mkdir()
    (root / "cgroup.procs").touch()
    return Hierarchy(2, root)


def _cgroup(hierarchy: Hierarchy, name: str) -> Path:
    """A literal cgroup, and those above it."""
    path = hierarchy.root
    for part in Path(name).parts:
        path = path / part
        if not path.exists():
            # Made complete elsewhere and moved in: the kernel's mkdir gives a complete cgroup at once, too.
            new = hierarchy.root.parent / "new"
            new.mkdir()
            (new / "cgroup.procs").touch()
            new.rename(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "pods"
    path.mkdir(mode=0o755)
    return path


@pytest.fixture
def pods(folder: Path, hierarchy: Hierarchy) -> Iterator[PodSource]:
    opened = open_for(RunConfig(pods=f"manifests:{folder}"), hierarchy, 16 * GI)
    yield opened
    opened.close()


def _names(change: Change) -> list[str]:
    return [found.pod.name for found in change.updated]


def manifest(folder: Path, name: str, cgroup: str | Path | None = None, uid: str = "", **annotations: str) -> None:
    """A file of its own; a path of a real cgroup is named as an annotation names it."""
    if isinstance(cgroup, Path):
        cgroup = str(cgroup.relative_to(cgroupfs.detect().root))
    notes = annotations if cgroup is None else {"outrace/cgroup": cgroup, **annotations}
    meta = {"name": name, "uid": uid or f"uid-{name}", "annotations": notes}
    _write(folder / f"{name}.json", {"kind": "Pod", "metadata": meta, "spec": {"containers": [{"name": "main"}]}})


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
