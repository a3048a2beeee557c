"""The kubelet of this node: its process, its flags, the files that it was started with."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitor import documents
from monitor.kernel.procfs import Process
from monitor.pods import embedded_kubelet

if TYPE_CHECKING:
    from monitor.kube.kubelet import KubeletTrust

#: Where installers put the kubelet's configuration, and the credentials it has at the API server: kubeadm, EKS and
#: kops, k3s, RKE2, k0s, MicroK8s.
CONFIG = Path("/var/lib/kubelet/config.yaml")
KUBECONFIGS = tuple(
    map(
        Path,
        (
            "/etc/kubernetes/kubelet.conf",
            "/var/lib/kubelet/kubeconfig",
            "/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
            "/var/lib/rancher/rke2/agent/kubelet.kubeconfig",
            "/var/lib/k0s/kubelet.conf",
            "/var/snap/microk8s/current/credentials/kubelet.config",
        ),
    )
)


@dataclass(frozen=True)
class KubeletProcess:
    """``pid`` is 0 where there is none, or it is not running yet; ``config`` is its file, {} if there is none.

    ``config_path`` is where that file was read, in the kubelet's own mount namespace if it has one.
    """

    pid: int = 0
    flags: Mapping[str, str] = field(default_factory=dict)
    config_path: Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    kubeconfig: Path | None = None
    drop_ins: tuple[tuple[Path, Mapping[str, Any]], ...] = ()  # of --config-dir, in order
    installed: Path | None = None  # the file that shows one is installed (k3s, MicroK8s), while it does not run
    unread: str = ""  # why the file that it names with --config cannot be read; "" where it can, or none is named

    @property
    def is_there(self) -> bool:
        return self.pid > 0 or self.config_path is not None or self.installed is not None

    @property
    def whose(self) -> str:
        """Where its arguments are known from."""
        return f"process {self.pid}" if self.pid or not self.installed else f"of {self.installed}"

    @property
    def node_name(self) -> str:
        """As the kubelet registers itself: ``--hostname-override``, else the host's name in small letters (in a pod
        without hostNetwork that is the pod's name, not the host's: see `Access.node`).
        """
        return (self.flags.get("hostname-override") or socket.gethostname()).strip().lower()

    @property
    def url(self) -> str:
        """Where it serves https, from this node."""
        address = self._setting("address")
        host = "127.0.0.1" if address in ("", "0.0.0.0", "::") else address
        return f"https://{f'[{host}]' if ':' in host else host}:{_port(self._setting('port')) or 10250}"

    @property
    def read_only_url(self) -> str:
        """Where it serves http, "" where it does not: that is the default."""
        port = _port(self._setting("readOnlyPort", "read-only-port"))
        return f"http://{self.url.removeprefix('https://').rpartition(':')[0]}:{port}" if port else ""

    @property
    def trust(self) -> KubeletTrust:
        """Its own certificate, as it lies on this node."""
        from monitor.kube.kubelet import (  # ssl takes 20 ms to import, on machines without a kubelet too
            PKI,
            KubeletTrust,
        )

        pinned = self._setting("tlsCertFile", "tls-cert-file")
        pki = _there(self.pid, Path(self.flags.get("cert-dir") or PKI))
        return KubeletTrust(certificates=(_there(self.pid, Path(pinned)),) if pinned.startswith("/") else (), pki=pki)

    def _setting(self, key: str, flag: str = "") -> str:
        """What is in force: the flag, else the last drop-in that says something, else the file; "" for nothing."""
        if text := self.flags.get(flag or key):
            return text
        files = (*(content for _, content in reversed(self.drop_ins)), self.config)
        return next((str(content[key]) for content in files if content.get(key) is not None), "")

    def __str__(self) -> str:
        found = [f"process {self.pid}"] if self.pid else []
        found += [f"configuration {self.config_path}"] if self.config_path else []
        return ", ".join(found + ([f"{self.installed}, not running"] if self.installed else []))


def find_kubelet() -> KubeletProcess:
    """The kubelet that runs in our pid namespace as root, by itself or inside k3s or MicroK8s; else what its usual
    files say.
    """
    pid, arguments = _running()
    installed = None
    if not pid and not os.path.isfile(CONFIG) and (there := embedded_kubelet.installed()) is not None:
        installed, arguments = there
    flags = _flags(arguments)
    config_path, config, problems = None, {}, list[str]()
    for path in _config_paths(pid, flags):
        if (read := _mapping(path, problems.append)) is not None:
            config_path, config = path, read
            break
    unread = problems[0] if pid and problems and config_path is None else ""
    candidates = [Path(flags["kubeconfig"])] if flags.get("kubeconfig", "").startswith("/") else list(KUBECONFIGS)
    # (os.path: for who is not root the way to it may be closed, and pathlib raises then.)
    kubeconfig = next((path for path in candidates if os.path.isfile(path)), None)
    return KubeletProcess(pid, flags, config_path, config, kubeconfig, _drop_ins(pid, flags), installed, unread)


def _config_paths(pid: int, flags: Mapping[str, str]) -> list[Path]:
    """Where its file may be read. A kubelet that runs without --config has none; in its mount namespace first."""
    if not pid:
        return [CONFIG]
    named = flags.get("config", "")
    if not named:
        return []
    root = Path(f"/proc/{pid}/root")
    return [root / named.lstrip("/"), Path(named)] if named.startswith("/") else [Path(f"/proc/{pid}/cwd") / named]


def _drop_ins(pid: int, flags: Mapping[str, str]) -> tuple[tuple[Path, Mapping[str, Any]], ...]:
    if not flags.get("config-dir", "").startswith("/"):
        return ()
    paths = sorted(_there(pid, Path(flags["config-dir"])).rglob("*.conf"))
    return tuple((path, read) for path in paths if (read := _mapping(path)) is not None)


def _there(pid: int, path: Path) -> Path:
    """An absolute path of the kubelet's: as it is where we have it too (what is read again later outlives a kubelet),
    else through its mount namespace: by process 1, which outlives it, where the same file is there.
    """
    through = Path(f"/proc/{pid}/root") / path.relative_to("/")
    with suppress(OSError):
        if not pid or path.exists() or not through.exists():
            return path
        by_init = Path("/proc/1/root") / path.relative_to("/")
        with suppress(OSError):  # a sandbox may forbid to look at process 1
            if os.path.samefile(through, by_init):
                return by_init
        return through
    return path


def _mapping(path: Path, on_problem: Callable[[str], object] = lambda _: None) -> dict[str, Any] | None:
    """The mapping in a YAML or JSON file; None where there is none, or it cannot be read."""
    try:
        read = next(iter(documents.from_yaml(documents.decoded(documents.read_bytes(path)))), None)
    except OSError as error:
        on_problem(f"{path}: {error.strerror or error}")
    except documents.UnreadableError as error:
        on_problem(f"{path}: {error}")
    else:
        if isinstance(read, dict):
            return read
        on_problem(f"{path}: is no map")
    return None


def _running() -> tuple[int, Sequence[str]]:
    """Pid and arguments of the kubelet; (0, ()) if there is none. One in a container (kind) is another node's. One that
    is a process comes before one inside another process.

    By /proc itself: 20 us a process, on machines without a kubelet too.
    """
    ours = os.stat("/proc/self/ns/pid").st_ino
    inside: tuple[int, Sequence[str]] = (0, ())
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(OSError), Process(pid) as process:
            name = process.comm()
            if name != "kubelet" and (inside[0] or name not in embedded_kubelet.NAMES):
                continue
            if os.stat(f"/proc/{pid}").st_uid != 0 or os.stat(f"/proc/{pid}/ns/pid").st_ino != ours:
                continue
            # As bytes that are no text: a path may be any.
            text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="surrogateescape")
            given = text.rstrip("\0").split("\0")
            if name == "kubelet":
                return pid, given[1:]
            if (found := embedded_kubelet.arguments(pid, name, given)) is not None:
                inside = pid, found
    return inside


def _flags(arguments: Sequence[str]) -> dict[str, str]:
    """``--name=value`` and ``--name value``, as pflag reads them; a switch has the value "true"."""
    found: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        one = rest.pop(0)
        if not one.startswith("--") or one == "--":
            continue
        name, equals, value = one.removeprefix("--").partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        found[name.replace("_", "-")] = value  # as the kubelet's own flags are normalized
    return found


def _port(value: object) -> int:
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65536 else 0
