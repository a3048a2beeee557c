"""Configurations of tests."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monitor.settings.config import RunConfig
from monitor.settings.read import read

#: What a KubeletConfiguration begins with.
KUBELET = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


def write(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def build(flags: Mapping[str, Any], own: str | None = None, kubelets: str | None = None) -> RunConfig:
    """The configuration that these flags and files make. Raises ConfigError."""
    return read(flags, own, kubelets).config


def started(text: str, tmp_path: Path, **flags: object) -> RunConfig:
    """As the daemon has it: through the memfd, with what a start fills in."""
    config = read(flags, write(tmp_path, "own.yaml", text)).config
    filled = dataclasses.replace(config, pods="cgroups", nodefs="/", imagefs="/", rung="poll", listen_port=40000)
    return RunConfig.from_json(filled.to_json())


def kubeconfig(path: Path, server: str, ca: Path | None = None, **user: Any) -> Path:
    """A kubeconfig of this server; ``user``: credentials, as `token`."""
    cluster = {"server": server} | ({} if ca is None else {"certificate-authority": str(ca)})
    made = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(json.dumps(made))
    path.chmod(0o600)
    return path
