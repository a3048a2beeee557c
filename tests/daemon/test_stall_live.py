"""Stalls of the real kernel: files of a pod that no longer fit beside another pod, and are read again and again."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from monitor.kernel import pressure
from monitor.lab import janitor
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import LabNode
from tests import live
from tests.kernel.conftest import files as files

MIB = live.MIB
pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(pressure.waited(pressure.PROC) is None, reason="this kernel has no PSI"),
]
RATIO = 'outrace_pod_stall_ratio{namespace="lab",pod="reader"}'
#: A thread reads pages of a mapped file at random.
READ = """
import random
def reads(path):
    attend(path)
    block, rng = kept[-1], random.Random(1)
    while True: block[rng.randrange(len(block) // 4096) * 4096]
threading.Thread(target=reads, args=('{}',), daemon=True).start()
"""


class Stage(NamedTuple):
    node: LabNode
    reader: live.Puppet
    hog: live.Puppet


@contextmanager
def counted(node: LabNode, *puppets: live.Puppet, cgroups: tuple[Path, ...]) -> Iterator[None]:
    """On v1 the processes are in cgroups of the same paths in the v2 hierarchy beside it, as systemd has them."""
    root, twins = pressure.unified(node.hierarchy), list[Path]()
    try:
        for puppet, cgroup in zip(puppets, cgroups, strict=True):
            if node.hierarchy.version == 1 and root is not None:
                twins.append(root / cgroup.relative_to(node.hierarchy.root))
                twins[-1].mkdir(parents=True)
                (twins[-1] / "cgroup.procs").write_text(str(puppet.pid))
        yield
    finally:
        for puppet in puppets:
            puppet.close()
        assert all(janitor.remove_tree(str(twin.parents[1])) for twin in twins)


@pytest.fixture
def stage(files: Path) -> Iterator[Stage]:
    """A node of 128 MiB on which one pod has 80 MiB of files, and another is about to take 90 MiB."""
    with LabNode("stall", 128 * MIB) as node:
        pods = node.add_pod("reader"), node.add_pod("hog")
        containers = pods[0].containers["c0"], pods[1].containers["c0"]
        puppets = live.Puppet(containers[0]), live.Puppet(containers[1])
        with counted(node, *puppets, cgroups=containers):
            puppets[0].do(f"write('{files}/read', 80)")
            yield Stage(node, *puppets)
        assert node.oom_kills() == 0


@pytest.mark.parametrize("evict", [False, True])
def test_a_reader_whose_files_no_longer_fit_stalls_because_of_the_pod_that_grew(
    stage: Stage, files: Path, tmp_path: Path, evict: bool
) -> None:
    own = tmp_path / "own.yaml"
    # Emulated CPUs are slow beside the disk: the reader waits for 40 % of the time.
    own.write_text(f"stall: pod>{15 if live.emulated() else 40}%,grace=3s{',evict' * evict}\n")
    options = "--config", str(own), "--eviction-hard", "memory.reclaimable<1Mi", *["--enforce"] * evict
    with LabDaemon(stage.node, *options) as daemon:
        stage.reader.do(f"exec({READ.format(files / 'read')!r})")
        live.until(lambda: RATIO in daemon.metrics(), "figures")
        stage.hog.tell("[anon(1) or time.sleep(0.02) for _ in range(90)]")  # on a slow machine it stalls before the end
        named = live.message(daemon, "a pod waits for memory that it had", pod="lab/reader")
        assert (named["cause"], named["why"]) == ("lab/hog", "grew")
        assert named["grew"] >= 20 * MIB
        assert live.message(daemon, "a pod stalls", pod="lab/reader")["cause"] == "lab/hog"
        if evict:
            assert live.message(daemon, "evicted")["pod"] == "lab/hog"
        else:
            shares = json.loads(daemon.get("/stats/summary")[1])["outrace"]["stalls"]
            assert 0 < shares[stage.node.pods["reader"].uid] <= 1
            stage.hog.expect("done")
            stage.hog.do("kept.clear()")
        # On a slow machine the other pod waits too, for its own reclaim.
        domain = f"/{stage.node.pods['reader'].cgroup.relative_to(stage.node.hierarchy.root)}"
        incident = live.message(daemon, "incident", verdict="stalled", final=True, domain=domain)
        assert "lab/reader waited for memory" in incident["summary"]
        assert "lab/hog grew by " in incident["summary"]
        ended = "outrace had evicted lab/hog" if evict else "lab/hog had freed memory"
        assert f"it ended when {ended}" in incident["summary"]
        assert live.metric(daemon, "stalls_total") >= 1
