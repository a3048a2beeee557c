"""Who is killed by a real daemon where somebody pretends: the pod that is one, and nobody else."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from monitor.kernel import cgroupfs
from monitor.lab.child import Hog
from monitor.lab.node import LabNode
from tests import live
from tests.daemon.hot_node import decided, evicted, hard, hot_node

pytestmark = [pytest.mark.kernel, pytest.mark.once]
NOBODY = 65534
UID = "5c2b2da2-119f-4fa8-8801-c79f0fa869aa"
OTHER = "0f5a1c2e-1111-2222-3333-444455556666"
#: kind's: the kubelet has a cgroup root of its own.
SLICES = (
    "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{slice}.slice"
)
CID = "46b4aeed" * 8
GUESSING = ("--pods", "cgroups", "--enforce", "--enforce-unknown-specs")
HOLDS = "import sys; held = b'x' * (int(sys.argv[1]) << 20); print('holds', flush=True); sys.stdin.read()"

node = live.fixture(hot_node)


@contextmanager
def users(cgroup: Path, mib: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process of user 65534 that holds so much, in a cgroup that he has made himself."""
    process = subprocess.Popen(
        [
            "sh",
            "-ec",
            'echo $$ > "$1/cgroup.procs"; shift; exec "$@"',
            "sh",
            cgroup,
            sys.executable,
            "-c",
            HOLDS,
            str(mib),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
    )
    with process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"holds\n"
            yield process
        finally:
            process.kill()


def delegated(path: Path) -> Path:
    """A cgroup of user 65534's, with what he needs to move his own processes in."""
    cgroupfs.make(path)
    for name in (path, path / "cgroup.procs"):
        os.chown(name, NOBODY, NOBODY)
    return path


def hog(node: LabNode, uid: str, mib: int, below: str = "kubepods/burstable/pod{uid}") -> Hog:
    path = node.cgroup / below.format(uid=uid, slice=uid.replace("-", "_")) / CID
    made = Hog(cgroupfs.make(path), mib=mib, rate=100)
    node.children.append(made)
    return made


def test_a_users_own_kubepods_holds_no_pods(node: LabNode) -> None:
    """It is as near to the root as the kubelet's own, and was taken for that: its pods alone were known."""
    home = delegated(node.cgroup / "home")
    mine = home / f"kubepods/besteffort/pod{UID}/{CID}"
    subprocess.run(["mkdir", "-p", mine], user=NOBODY, group=NOBODY, extra_groups=[], check=True)
    if cgroupfs.detect().version == 2:
        pytest.skip("what he may move where is another matter on cgroup v2: tests/pods/test_kubepods.py")
    with users(mine, 50) as process:
        real = hog(node, OTHER, 60, SLICES)
        with live.daemon(node, *hard(32), *GUESSING, "--cgroup-root", "/kubelet") as daemon:
            real.go()
            live.message(daemon, "evicted", uid=OTHER)
            assert real.wait() == -signal.SIGKILL
            assert len(live.messages(daemon, "evicting")) == 1
            assert any("no pod's spec is known" in str(record.get("msg")) for record in daemon.log)
            counted = daemon.metrics()
            assert (counted["outrace_pods"], counted["outrace_pods_spec_unknown"]) == (1, 1)
        assert process.poll() is None


def test_a_static_pod_is_passed_over_however_large_it_is(node: LabNode) -> None:
    static = hog(node, "e2" * 16, 60)
    static.go()
    static.expect("grown")
    other = hog(node, UID, 40)
    with live.daemon(node, *hard(32), *GUESSING) as daemon:
        other.go()
        live.message(daemon, "evicted", uid=UID)
        assert other.wait() == -signal.SIGKILL
        assert [record["uid"] for record in live.messages(daemon, "evicting")] == [UID]
    assert static.process.poll() is None


def test_an_annotation_that_names_another_costs_the_other_nothing(node: LabNode) -> None:
    """A pod of a low priority points at its neighbour's cgroup, and at the one of a unit of the machine's."""
    victim = hog(node, UID, 20)
    victim.go()
    victim.expect("grown")
    attacker = node.add_pod("attacker", priority=-10)
    manifest = next(path for path in node.manifests.iterdir() if "attacker" in path.name)
    own = str(attacker.cgroup.relative_to(cgroupfs.detect().root))
    other = str((node.cgroup / f"kubepods/burstable/pod{UID}").relative_to(cgroupfs.detect().root))
    manifest.write_text(manifest.read_text().replace(f'"{own}"', f'"{other}"'))
    fair = node.add_pod("fair")
    with live.daemon(node, "--enforce", *hard(32)) as daemon:
        assert daemon.wait_for(lambda r: f"is of the pod of uid {UID}" in str(r.get("msg")), live.TIMEOUT_S)
        grown = node.start_hog(fair, mib=80, rate=100)
        grown.go()
        evicted(daemon, fair)
        assert decided(daemon) == ["fair"]
    assert victim.process.poll() is None
