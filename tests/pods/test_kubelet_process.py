"""The kubelet as its process and its files show it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from monitor.errors import ConfigError
from monitor.pods import kubelet_process
from monitor.pods.access import Access
from monitor.pods.kubelet_process import KubeletProcess, _flags, find_kubelet
from tests.pods.test_discover import kubeconfig
from tests.waiting import until


def test_flags_as_the_kubelet_reads_them() -> None:
    given = "--config=/etc/k.yaml --hostname-override n1 --fail-swap-on --eviction_hard=memory.available<1Gi -v=2 --x"
    assert _flags(given.split()) == {
        "config": "/etc/k.yaml",
        "hostname-override": "n1",
        "fail-swap-on": "true",
        "eviction-hard": "memory.available<1Gi",
        "x": "true",
    }


@pytest.mark.parametrize(
    ("config", "flags", "url", "read_only"),
    [
        ({}, {}, "https://127.0.0.1:10250", ""),
        ({"address": "0.0.0.0", "port": 1234}, {}, "https://127.0.0.1:1234", ""),
        ({"address": "10.1.2.3", "readOnlyPort": 10255}, {}, "https://10.1.2.3:10250", "http://10.1.2.3:10255"),
        ({"address": "fd00::1"}, {"read-only-port": "1"}, "https://[fd00::1]:10250", "http://[fd00::1]:1"),
        ({"port": "x", "readOnlyPort": True}, {}, "https://127.0.0.1:10250", ""),
        ({"port": 1}, {"port": "2"}, "https://127.0.0.1:2", ""),  # a flag wins
        ({"readOnlyPort": 10255}, {"read-only-port": "0"}, "https://127.0.0.1:10250", ""),
    ],
)
def test_where_it_serves(config: dict[str, Any], flags: dict[str, str], url: str, read_only: str) -> None:
    found = KubeletProcess(config=config, flags=flags)
    assert (found.url, found.read_only_url) == (url, read_only)


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: cannot be the kubelet")
def test_the_process_is_found_with_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of that name that root runs in our pid namespace, its files by its own root directory."""
    (tmp_path / "config.yaml").write_text("kind: KubeletConfiguration\nport: 4321\n")
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/10.conf").write_text("readOnlyPort: 4322\n")
    kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1")
    program = tmp_path / "kubelet"
    program.write_bytes(Path("/bin/cat").read_bytes())
    program.chmod(0o755)
    # cat takes "-" for its input and the flags for files that are not there: --help would end it.
    with subprocess.Popen(
        ["kubelet", "--", "-", *(f"--{k}={tmp_path / v}" for k, v in FILES.items()), "--hostname_override", "Node-7"],
        executable=program,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as running:
        try:
            # (This machine may have a kubelet of its own.)
            mine = [name for name in os.listdir("/proc") if not name.isdigit() or int(name) >= running.pid]
            monkeypatch.setattr(os, "listdir", lambda _: mine)
            # Its name is set a moment after its descriptors were closed, which is what Popen waits for.
            until(lambda: find_kubelet().pid == running.pid, "a process called kubelet")
            found = find_kubelet()
            assert found.is_there
            assert found.node_name == "node-7"
            assert (found.url, found.read_only_url) == ("https://127.0.0.1:4321", "http://127.0.0.1:4322")
            assert found.config_path == Path(f"/proc/{running.pid}/root{tmp_path}/config.yaml")
            assert found.kubeconfig == tmp_path / "kubeconfig"
            assert found.trust.pki == tmp_path
            assert str(found) == f"process {running.pid}, configuration {found.config_path}"
        finally:
            running.kill()


@pytest.mark.kernel
def test_what_only_the_kubelet_sees_is_read_through_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container: the files of the node are not there, and process 1 may be closed to us."""
    (tmp_path / "only-there.crt").write_text("x")
    code = "import os, sys; os.chroot(sys.argv[1]); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-S", "-E", "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        seen = Path(f"/proc/{running.pid}/root/only-there.crt")
        trust = KubeletProcess(running.pid, {"tls-cert-file": "/only-there.crt", "cert-dir": "/nowhere"}).trust
        assert (trust.certificates, trust.pki) == ((seen,), Path("/nowhere"))
        assert KubeletProcess(running.pid, {"tls-cert-file": str(tmp_path)}).trust.certificates == (tmp_path,)
        monkeypatch.setattr(os.path, "samefile", lambda a, b: Path(b) == Path("/proc/1/root/only-there.crt"))
        trust = KubeletProcess(running.pid, {"tls-cert-file": "/only-there.crt"}).trust
        assert trust.certificates == (Path("/proc/1/root/only-there.crt"),)
        running.stdin.close()  # type: ignore[union-attr]


FILES = {"config": "config.yaml", "config-dir": "conf.d", "kubeconfig": "kubeconfig", "cert-dir": "."}


def test_a_kubelet_without_a_file_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies where installers put it is not what this one was started with."""
    (tmp_path / "config.yaml").write_text("port: 4321\n")
    monkeypatch.setattr(kubelet_process, "CONFIG", tmp_path / "config.yaml")
    monkeypatch.setattr(kubelet_process, "_running", lambda: (os.getpid(), ["--hostname-override=n"]))
    assert find_kubelet().config_path is None
    assert find_kubelet().is_there
    monkeypatch.setattr(kubelet_process, "_running", lambda: (0, ()))
    found = find_kubelet()
    assert (found.pid, found.config_path, found.config) == (0, tmp_path / "config.yaml", {"port": 4321})


@pytest.mark.parametrize("text", ["[1]", "a: b: c", "", "\0"])
def test_a_file_that_is_no_configuration_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    monkeypatch.setattr(kubelet_process, "CONFIG", tmp_path / "config.yaml")
    monkeypatch.setattr(kubelet_process, "_running", lambda: (0, ()))
    assert not find_kubelet().is_there


def test_files_that_may_not_be_looked_at_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """`outrace explain` of a user who is not root, on a node: /var/lib/kubelet is closed to him."""
    closed = Path("/", "x" * 300, "kubeconfig")  # any error but ENOENT: root may look everywhere
    with pytest.raises(OSError, match="File name too long"):
        closed.is_file()
    monkeypatch.setattr(kubelet_process, "KUBECONFIGS", (closed,))
    monkeypatch.setattr(kubelet_process, "CONFIG", closed)
    monkeypatch.setattr(kubelet_process, "_running", lambda: (0, ()))
    assert find_kubelet() == KubeletProcess()
    with pytest.raises(ConfigError, match="no certificate of a kubelet"):
        Access(kubelet=KubeletProcess(flags={"cert-dir": str(closed)})).kubelet_server()
