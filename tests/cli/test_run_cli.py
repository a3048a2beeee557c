"""`outrace run` on machines that lack something: each lack is simulated in a mount namespace of its own, for real."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.kernel import loader
from monitor.kernel.pins import TRACEPOINT, Pins
from monitor.kernel.rungs import NAMES, SOFT_RUNGS
from monitor.lab.daemon import LabDaemon
from monitor.lab.node import MIB, LabNode
from tests import live

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.once,
    pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare (util-linux) is not installed"),
]


def run_with(
    change: str, state: Path, *, then: str = "exec", hooks: str | None = None
) -> subprocess.CompletedProcess[str]:
    """`outrace run` on the best rung with BPF that this kernel has and no other, after ``change`` (shell) in a mount
    namespace that ends with it.
    """
    hooks = hooks or Pins.open(live.pin_dir()).hook
    script = f'{change} && {then} "$0" "$@"'
    wrapper = ("unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script)
    return live.outrace("run", "--hooks", hooks, "--state-dir", str(state), "--listen", "127.0.0.1:0", wrapper=wrapper)


def hide(directory: str) -> str:
    return f"{{ [ ! -d {directory} ] || mount -t tmpfs none {directory}; }}"


def test_no_btf(tmp_path: Path) -> None:
    live.one_line(run_with(hide("/sys/kernel/btf"), tmp_path), 3, "/sys/kernel/btf/vmlinux", "CONFIG_DEBUG_INFO_BTF")


def test_no_bcc(tmp_path: Path) -> None:
    import importlib.util

    spec = importlib.util.find_spec("bcc")
    assert spec.origin is not None
    result = run_with(hide(str(Path(spec.origin).parent)), tmp_path)
    live.one_line(result, 3, "bcc", "apt-get install python3-bpfcc")


def test_no_hook(tmp_path: Path) -> None:
    """A kernel before 6.13 has no tracepoints on memory cgroup statistics; this one has no other hook either."""
    functions = "/sys/kernel/tracing/available_filter_functions"
    missing = f"[ ! -e {functions} ] || mount --bind /dev/null {functions}"
    change = (
        f"{hide('/sys/bus/event_source/devices')} && {{ {missing}; }} && {hide('/sys/kernel/tracing/events/memcg')}"
    )
    result = run_with(change, tmp_path, hooks=TRACEPOINT)
    live.one_line(result, 3, "no tracepoint memcg:mod_memcg_lruvec_state", "6.13")


def test_bpffs_that_cannot_be_mounted(tmp_path: Path) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv (util-linux) is not installed")
    result = run_with("umount /sys/fs/bpf", tmp_path, then="exec setpriv --bounding-set=-sys_admin")
    live.one_line(result, 3, "bpf is not mounted at /sys/fs/bpf", "mount -t bpf -o mode=0700 bpf /sys/fs/bpf")


@pytest.mark.parametrize(
    ("change", "then", "why"),
    [
        (hide("/sys/kernel/btf"), "exec", "/sys/kernel/btf/vmlinux"),
        (hide("/sys/kernel/tracing/events/memcg"), "exec", "no tracepoint memcg:mod_memcg_lruvec_state"),
        ("umount /sys/fs/bpf", "exec setpriv --bounding-set=-sys_admin", "bpf is not mounted at /sys/fs/bpf"),
    ],
)
def test_left_to_choose_it_steps_down_and_runs(tmp_path: Path, change: str, then: str, why: str) -> None:
    wrapper = ("unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", f'{change} && {then} "$0" "$@"')
    with (
        LabNode("test-stepdown", 64 * MIB) as node,
        LabDaemon(node, state_dir=tmp_path / "state", wrapper=wrapper) as daemon,
    ):
        logged = live.message(daemon, "better hooks cannot be used here")
        # Without the tracepoint a kernel may still have fentry or kprobes.
        assert logged["hooks"] in (NAMES[1:] if "tracepoint" in why else SOFT_RUNGS)
        assert why in logged["problem"]
        assert logged["remedy"]
        assert live.metric(daemon, f'hook_rung{{rung="{logged["hooks"]}"}}') == 1
    assert not loader.instance_directory(tmp_path / "state").exists()


def test_bpffs_that_is_not_mounted_is_mounted(tmp_path: Path) -> None:
    with LabNode("test-bpffs", 64 * MIB) as node:
        relative = str(node.cgroup.relative_to(node.hierarchy.root))
        script = 'umount /sys/fs/bpf; "$0" "$@" & read stop; ls /sys/fs/bpf/outrace/*/*; kill $!; wait $!'
        command = [
            *("unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script),
            *(
                sys.executable,
                "-c",
                live.CLI,
                "run",
                "--node-cgroup",
                relative,
                "--pods",
                f"manifests:{node.manifests}",
            ),
            *("--state-dir", str(tmp_path), "--listen", "127.0.0.1:0", "--log-format", "json"),
        ]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=live.environment(),
        ) as process:
            node.also_end(process.pid)
            assert process.stderr is not None
            logged = []
            for line in process.stderr:
                logged.append(line)
                if json.loads(line).get("msg") == "ready":
                    break
            else:
                pytest.fail("".join(logged))
            out, _ = process.communicate("stop\n", timeout=live.TIMEOUT_S)
            assert process.returncode == 0
        assert "link_on_mark_victim" in out
    assert not loader.instance_directory(tmp_path).exists(), "pinned where the test did not look"


def test_a_manifest_that_is_not_a_pod_is_named_and_the_rest_goes_on() -> None:
    with LabNode("test-bad", 64 * MIB) as node:
        good = node.add_pod("good")
        (node.manifests / "service.json").write_text('{"apiVersion": "v1", "kind": "Service"}')
        (node.manifests / "torn.yaml").write_text("kind: Pod\n  nothing: [")
        with live.daemon(node) as daemon:
            live.message(daemon, "pod found", uid=good.uid)
            warnings = [r for r in daemon.log if r.get("level") == "warning"]
            for name, word in (("service.json", "Service"), ("torn.yaml", "torn.yaml")):
                lines = [r["msg"] for r in warnings if str(node.manifests / name) in r["msg"]]
                assert len(lines) == 1, warnings
                assert word in lines[0]
                assert "\n" not in lines[0]
            live.ended(daemon)
