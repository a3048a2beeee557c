"""Configurations of tests."""

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
