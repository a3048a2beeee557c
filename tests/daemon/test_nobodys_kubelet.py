"""A local user's process called kubelet, with effective uid 0: outrace runs and believes nothing that it names.

As `ln -s /usr/bin/su kubelet; ./kubelet -- root --kubeconfig=K --config=C` is one, while it waits for a password.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.settings.read import read
from tests.daemon.config_files import kubeconfig, write
from tests.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="not root: cannot start a process of another user")
NOBODY = 65534
#: Becomes real uid 65534 with effective uid 0, as a setuid program of that user.
BECOME = "import os, sys; os.setresuid(65534, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """What the plugin of the user's kubeconfig would make, while the user's process runs."""
    marker = tmp_path / "ran"
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/touch", "args": [str(marker)]}
    config = {"kind": "KubeletConfiguration", "evictionHard": {"memory.available": "77Mi"}, "readOnlyPort": 7}
    write(tmp_path, "c", json.dumps(config))
    for path in (tmp_path / "c", kubeconfig(tmp_path / "k", "http://127.0.0.1:1", exec=plugin)):
        os.chown(path, NOBODY, NOBODY)
    program = tmp_path / "kubelet"
    shutil.copy("/bin/cat", program)
    given = ["--", "-", f"--kubeconfig={tmp_path / 'k'}", f"--config={tmp_path / 'c'}"]
    with subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", BECOME, str(program), *given],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as running:
        try:
            status = Path(f"/proc/{running.pid}/status")
            until(lambda: "Name:\tkubelet\n" in status.read_text(), "a process called kubelet")
            assert f"Uid:\t{NOBODY}\t0\t0\t0\n" in status.read_text()
            yield marker
        finally:
            running.kill()


def test_its_plugin_does_not_run_and_its_thresholds_are_not_read(marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    config = read({"listen": "127.0.0.1:0"}, ask_kubelet=True).config
    assert not marker.exists()
    assert str(marker.parent) not in str(config.origins)
    assert "77Mi" not in config.eviction_hard.values()
