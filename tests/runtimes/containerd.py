"""The distribution's containerd with a store of its own, and pods made in it by CRI as a kubelet makes them."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from monitor.kernel import cgroupfs
from monitor.lab import janitor
from tests import live
from tests.own_cgroups import removed_with_session

#: Its configuration: no network of its own (pods are on the host's), nothing that asks for the machine's rights.
_CONFIG = """
version = 2
root = "{base}/root"
state = "{state}"
[grpc]
address = "{state}/s.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/holder:1"
disable_apparmor = true
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{state}/cni"
conf_dir = "{state}/cni"
"""
NEEDED = {"containerd": "containerd", "ctr": "containerd", "runc": "runc"}


def need(programs: Mapping[str, str], path: str | None = None) -> None:
    """Skip the test where one of the programs (name -> package) is missing, or root's rights are."""
    if os.geteuid() != 0:
        pytest.skip("not root: cannot run containers")
    if missing := sorted({package for name, package in programs.items() if not shutil.which(name, path=path)}):
        pytest.skip(f"apt-get install --no-install-recommends {' '.join(missing)}")


def check() -> None:
    """Skip the test where containerd cannot be had."""
    need(NEEDED)
    pytest.importorskip("cri_api", reason="no stubs of CRI: `make setup` installs them")


@contextmanager
def parent_cgroup() -> Iterator[str]:
    """A cgroup for pods, by its path in every hierarchy."""
    with live.cgroup("containerd") as path:
        # Runtimes make it in the other controllers' trees of cgroup v1 as well.
        others = [root / path.name for root in cgroupfs.detect().root.parent.glob("*/") if root / path.name != path]
        for other in others:
            removed_with_session(other)
        try:
            yield f"/{path.name}"
        finally:
            removed = [janitor.remove_tree(str(other)) for other in others]  # all, whatever becomes of the first
            assert all(removed), "a cgroup of a runtime is still used"


class Containerd:
    """Context manager: a containerd whose images and containers are below ``base`` and whose sockets in ``state``."""

    def __init__(self, base: Path, state: Path, parent: str) -> None:
        self.base, self.state, self.parent = base, state, parent
        self.socket = state / "s.sock"

    def __enter__(self) -> Self:
        """Start it, and wait until it answers."""
        import grpc
        from cri_api.v1 import api_pb2, api_pb2_grpc

        self.api: Any = api_pb2
        self.state.mkdir(parents=True, exist_ok=True)
        config = self.state / "config.toml"
        config.write_text(_CONFIG.format(base=self.base, state=self.state))
        log = self.state / "log"
        with open(log, "ab") as out:
            self._process = subprocess.Popen(["containerd", "--config", config], stdout=out, stderr=out)
        self._channel = grpc.insecure_channel(f"unix://{self.socket}")
        self.runtime = api_pb2_grpc.RuntimeServiceStub(self._channel)

        def answers() -> bool:
            assert self._process.poll() is None, log.read_text()
            try:
                return bool(self.runtime.Version(api_pb2.VersionRequest(), timeout=1).runtime_name)
            except grpc.RpcError:
                return False

        live.until(answers, "containerd")
        return self

    def __exit__(self, *_: object) -> None:
        api = self.api
        try:
            for sandbox in self.runtime.ListPodSandbox(api.ListPodSandboxRequest()).items:
                self.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox.id))
                self.runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=sandbox.id))
        finally:
            self._channel.close()
            self._process.terminate()
            self._process.wait(live.TIMEOUT_S)

    def load(self, archive: Path) -> None:
        command = ["ctr", "-a", self.socket, "-n", "k8s.io", "images", "import", archive]
        done = subprocess.run(command, capture_output=True, text=True, timeout=live.TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr


class Pod:
    """A sandbox on the host's network, and what runs in it."""

    def __init__(self, containerd: Containerd, name: str) -> None:
        self._at, api = containerd, containerd.api
        host = api.LinuxSandboxSecurityContext(
            namespace_options=api.NamespaceOption(network=api.NODE, pid=api.CONTAINER, ipc=api.NODE)
        )
        self.config = api.PodSandboxConfig(
            metadata=api.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace="lab"),
            log_directory=str(containerd.state / "logs" / name),
            linux=api.LinuxPodSandboxConfig(cgroup_parent=containerd.parent, security_context=host),
        )
        request = api.RunPodSandboxRequest(config=self.config)
        self.id = containerd.runtime.RunPodSandbox(request, timeout=live.TIMEOUT_S).pod_sandbox_id

    def run(self, name: str, image: str) -> str:
        """A container."""
        api, runtime = self._at.api, self._at.runtime
        config = api.ContainerConfig(
            metadata=api.ContainerMetadata(name=name),
            image=api.ImageSpec(image=image),
            log_path=f"{name}.log",
            linux=api.LinuxContainerConfig(
                security_context=api.LinuxContainerSecurityContext(
                    namespace_options=api.NamespaceOption(network=api.NODE, pid=api.CONTAINER, ipc=api.NODE)
                )
            ),
        )
        request = api.CreateContainerRequest(pod_sandbox_id=self.id, config=config, sandbox_config=self.config)
        ident = runtime.CreateContainer(request, timeout=live.TIMEOUT_S).container_id
        runtime.StartContainer(api.StartContainerRequest(container_id=ident), timeout=live.TIMEOUT_S)
        return str(ident)

    def stop(self) -> None:
        """As a kubelet ends a pod: its containers exit, its sandbox is not ready any more, both stay."""
        self._at.runtime.StopPodSandbox(self._at.api.StopPodSandboxRequest(pod_sandbox_id=self.id))
