"""`outrace run` on machines that lack something: each lack is simulated in a mount namespace of its own, for real."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from monitor.kernel import loader
from monitor.kernel.charging import NAMES, POLL
from monitor.kernel.pins import TRACEPOINT, Pins
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from tests import live
from tests.commands import without

_SPEC = importlib.util.find_spec("bcc")
BCC = Path(_SPEC.origin).parent if _SPEC and _SPEC.origin else None
pytestmark = [
    pytest.mark.kernel,
    pytest.mark.once,
    pytest.mark.skipif(
        not (shutil.which("unshare") and shutil.which("setpriv") and BCC),
        reason="no unshare or setpriv (util-linux), or no BCC",
    ),
]


def without_directories(*directories: str) -> tuple[str, ...]:
    return live.in_own_mounts("\n".join(f"[ ! -d {path} ] || mount -t tmpfs none {path}" for path in directories))


#: A BTF without the tracepoints on memory cgroup statistics, as of a kernel before 6.13.
_BTF = "/sys/kernel/btf/vmlinux"
NO_TRACEPOINT = live.in_own_mounts(f"""
mount -t tmpfs none /mnt
LC_ALL=C sed s/btf_trace_mod_memcg_lruvec_state/btf_trace_mod_memcg_nothing_here/ {_BTF} >/mnt/btf
mount --bind /mnt/btf {_BTF}
""")
NO_BPFFS = live.in_own_mounts("umount /sys/fs/bpf", *without("sys_admin"))
#: What is lacking -> a command that takes it away, and words of the error: what, and how to get it.
LACKS = {
    "BTF": (without_directories("/sys/kernel/btf"), ("/sys/kernel/btf/vmlinux", "CONFIG_DEBUG_INFO_BTF")),
    "BCC": (without_directories(f"{BCC}"), ("bcc", "python3-bpfcc")),
    "bpffs": (NO_BPFFS, ("bpf is not mounted at /sys/fs/bpf", "mount -t bpf -o mode=0700 bpf /sys/fs/bpf")),
    "hook": (NO_TRACEPOINT, ("no tracepoint memcg:mod_memcg_lruvec_state", "6.13")),
}


@pytest.mark.parametrize("lack", LACKS)
def test_a_lack_is_reported_in_one_line(tmp_path: Path, lack: str) -> None:
    """On the best hook with BPF that this kernel has, and no other."""
    hook = TRACEPOINT if lack == "hook" else Pins(live.pin_dir()).hook
    options = ("--hooks", hook, "--state-dir", str(tmp_path), "--listen", "127.0.0.1:0")
    wrapper, words = LACKS[lack]
    live.one_line(live.outrace("run", *options, wrapper=wrapper), 3, *words)


@pytest.mark.parametrize("lack", LACKS)
def test_left_to_choose_it_steps_down_and_runs(tmp_path: Path, lack: str) -> None:
    wrapper, (what, _) = LACKS[lack]
    with (
        LabNode("test-stepdown", 64 * MIB) as node,
        LabDaemon(node, state_dir=tmp_path / "state", wrapper=wrapper) as daemon,
    ):
        logged = live.message(daemon, "better hooks cannot be used here")
        # Without the tracepoint a kernel may still have kprobes.
        assert logged["hooks"] in (NAMES[1:] if lack == "hook" else (POLL,))
        assert what in logged["problem"]
        assert logged["remedy"]
        assert live.metric(daemon, f'hook_rung{{rung="{logged["hooks"]}"}}') == 1
    assert not loader.instance_directory(tmp_path / "state").exists()


def test_bpffs_that_is_not_mounted_is_mounted(tmp_path: Path) -> None:
    with (
        LabNode("test-bpffs", 64 * MIB) as node,
        LabDaemon(node, state_dir=tmp_path / "state", wrapper=live.in_own_mounts("umount /sys/fs/bpf")) as daemon,
    ):
        pinned = Path(f"/proc/{daemon.pid}/root/sys/fs/bpf/outrace").glob("*/*/*")
        assert "link_on_mark_victim" in {path.name for path in pinned}
        live.ended(daemon)
    assert not loader.instance_directory(tmp_path / "state").exists(), "pinned where the test did not look"


def test_a_manifest_that_is_not_a_pod_is_named_and_the_rest_goes_on() -> None:
    with LabNode("test-bad", 64 * MIB) as node:
        good = node.add_pod("good")
        (node.manifests / "service.json").write_text('{"apiVersion": "v1", "kind": "Service"}')
        (node.manifests / "torn.yaml").write_text("kind: Pod\n  nothing: [")
        with live.daemon(node) as daemon:
            live.message(daemon, "pod found", uid=good.uid)
            live.ended(daemon)
            warnings = [r for r in daemon.log if r.get("level") == "warning"]
            for name, word in (("service.json", "Service"), ("torn.yaml", "torn.yaml")):
                lines = [r["msg"] for r in warnings if str(node.manifests / name) in r["msg"]]
                assert len(lines) == 1, warnings
                assert word in lines[0]
                assert "\n" not in lines[0]
