"""The client is of the standard library, and small: the node's processes carry it."""

from __future__ import annotations

import subprocess
import sys

MODULES = ("backoff", "client", "cluster", "kubelet", "reflector", "resources", "retry")
#: 2.7 MiB, 14 ms; what only a kubeconfig needs; what a client of the standard library does not.
NOT_IN_A_POD = {
    "yaml",
    "subprocess",
    "monitor.kube.kubeconfig",
    "urllib.request",
    "asyncio",
    "requests",
    "urllib3",
    "httpx",
}


def test_in_a_pod_it_imports_nothing_that_it_does_not_need() -> None:
    code = f"import sys, {', '.join(f'monitor.kube.{name}' for name in MODULES)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & NOT_IN_A_POD == set()
