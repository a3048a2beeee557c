"""The kubelet of this node, found by the files of its installer. No process is looked at: any user can give one a
kubelet's name, arguments and effective uid.

Root alone must be able to write every directory and file of a row, else the row is refused with the path and the
remedy. A kubelet that was started with other files needs ``--kubelet-config`` and ``--kubeconfig``.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from monitor import documents
from monitor.owner import ChangeableError, check_alone, read_alone

#: Below which the paths of the table are.
ROOT = Path("/")
#: In a pod there is a kubelet, wherever its files are.
POD = "the node of this pod"
_NO_FILE = "none of the known places has the kubelet's configuration"
#: Of k3s and RKE2 before 1.32, without memory.available; since then a drop-in has it, 00-NAME-defaults.conf.
_RANCHER_FLAGS = {
    "eviction-hard": "imagefs.available<5%,nodefs.available<5%",
    "eviction-minimum-reclaim": "imagefs.available=10%,nodefs.available=10%",
}
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_SCALAR = (str, int, float)
_ASSIGNED = re.compile(r"^\w+=")
#: What precedes a comment. (shlex takes one for granted within a word, too.)
_BEFORE_COMMENT = re.compile(r"""((?:[^'"\s]|'[^']*'|"[^"]*"|\s(?!#))*)\s#""")


@dataclass(frozen=True)
class NodeKubelet:
    """``installation``: where it was found, "" is nowhere. ``config``: its file, {} if there is none; ``flags``: its
    installer's. ``unread``: why its thresholds are not known. ``refused``: a file that others can change, and the
    remedy; then nothing of it is believed.
    """

    installation: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)
    config_path: Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    kubeconfig: Path | None = None
    drop_ins: tuple[tuple[Path, Mapping[str, Any]], ...] = ()  # of --config-dir, in order
    unread: str = ""
    refused: str = ""

    @property
    def is_there(self) -> bool:
        return bool(self.installation)

    @property
    def node_name(self) -> str:
        """As the kubelet registers itself: ``--hostname-override``, else the host's name (in a pod: `Access.node`)."""
        return (self.flags.get("hostname-override") or socket.gethostname()).strip().lower()

    @property
    def url(self) -> str:
        """Where it serves https, from this node."""
        address = self.setting("address")
        host = "127.0.0.1" if address in ("", "0.0.0.0", "::") else address
        return f"https://{f'[{host}]' if ':' in host else host}:{self.setting('port') or 10250}"

    @property
    def certificates(self) -> tuple[Path, ...]:
        """The one that it was given to serve with."""
        path = _absolute(self.setting("tlsCertFile", "tls-cert-file"))
        return () if path is None else (path,)

    @property
    def pki(self) -> Path:
        """Where it has its own."""
        return Path(self.flags.get("cert-dir") or _PKI[1])

    @property
    def serving(self) -> tuple[Path, ...]:
        """Its own certificates; the first is rotated (`serverTLSBootstrap`), the second it made itself."""
        return self.pki / "kubelet-server-current.pem", self.pki / "kubelet.crt"

    def setting(self, key: str, flag: str = "") -> str:
        """What is in force: the flag, else the last drop-in that says something, else the file; "" for nothing."""
        if text := self.flags.get(flag or key):
            return text
        files = (*(content for _, content in reversed(self.drop_ins)), self.config)
        return next((str(content[key]) for content in files if content.get(key) is not None), "")

    def __str__(self) -> str:
        return f"{self.installation}: {self.config_path}" if self.config_path else self.installation


def words(line: str) -> list[str]:
    """As a shell splits a line, or systemd the value of a variable (EnvironmentFile=), whose own quotes go first.
    Raises ValueError where a quote is not closed.
    """
    value = _ASSIGNED.sub("", line).lstrip()
    if value.startswith(("'", '"')):
        value = " ".join(shlex.split(value))
    before = _BEFORE_COMMENT.match(value)
    return shlex.split((before[1] if before else value).removesuffix("\\"))


@dataclass(frozen=True)
class Installation:
    """A row. ``marks``: files of which any shows it is installed; ``flags``: the installer's, before those in the files
    ``arguments``; ``rancher``: the name of a k3s-like installer, whose options say the rest.
    """

    name: str
    marks: tuple[str, ...] = ()
    flags: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    rancher: str = ""

    def found(self) -> NodeKubelet | None:
        """The kubelet, None where this one is not installed. Raises ChangeableError."""
        if self.rancher:
            flags = _of_rancher(self.rancher)
            return None if flags is None else _kubelet(self.name, flags)
        in_pod = self.name == POD and os.environ.get("KUBERNETES_SERVICE_HOST")
        if not in_pod and not any(os.path.isfile(_at(mark)) for mark in self.marks):
            return None
        flags = {name: str(_at(value)) if value else "" for name, value in self.flags}
        for path in map(_at, self.arguments):
            flags |= _arguments(path)
        return _kubelet(self.name, flags)


_PKI = ("cert-dir", "/var/lib/kubelet/pki")
_KUBECONFIG = ("kubeconfig", "/var/lib/kubelet/kubeconfig")
_MICROK8S = "/var/snap/microk8s/current/args/kubelet"
_CANONICAL = "/var/snap/k8s/common/args/kubelet"
_KUBEADM = ("/var/lib/kubelet/config.yaml", "/etc/kubernetes/kubelet.conf")
_EKS = ("/etc/kubernetes/kubelet/config.json", "/etc/kubernetes/kubelet/kubelet-config.json")
_K0S = ("/var/lib/k0s/kubelet-config.yaml", "/var/lib/k0s/kubelet.conf")
#: The first that is installed counts. kubeadm's kubeconfig is Canonical Kubernetes' too.
TABLE = (
    Installation("MicroK8s", (_MICROK8S,), arguments=(_MICROK8S,)),
    Installation("Canonical Kubernetes", (_CANONICAL,), arguments=(_CANONICAL,)),
    Installation("k3s", rancher="k3s"),
    Installation("RKE2", rancher="rke2"),
    Installation("k0s", _K0S, (("config", _K0S[0]), ("kubeconfig", _K0S[1]), ("cert-dir", "/var/lib/k0s/kubelet/pki"))),
    # Amazon Linux 2023 (nodeadm), and 2.
    Installation("EKS", _EKS[:1], (("config", _EKS[0]), _KUBECONFIG, _PKI), ("/etc/eks/kubelet/environment",)),
    Installation("EKS", _EKS[1:], (("config", _EKS[1]), _KUBECONFIG, _PKI)),
    Installation(
        "kubeadm",
        _KUBEADM,
        (("config", _KUBEADM[0]), ("kubeconfig", _KUBEADM[1]), _PKI),
        ("/var/lib/kubelet/kubeadm-flags.env", "/etc/default/kubelet", "/etc/sysconfig/kubelet"),
    ),
    # GKE, AKS, kops: each has its configuration elsewhere, and any may move it.
    Installation("a kubelet", _KUBECONFIG[1:], (_KUBECONFIG, _PKI, ("config", ""))),
    Installation(POD, flags=(_PKI, ("config", ""))),
)


def find_kubelet() -> NodeKubelet:
    """The kubelet of the first row that is installed here."""
    for row in TABLE:
        try:
            if (found := row.found()) is not None:
                return found
        except ChangeableError as error:
            return NodeKubelet(row.name, refused=f"the kubelet's files ({row.name}) are not believed: {error}")
    return NodeKubelet()


def _kubelet(name: str, flags: dict[str, str]) -> NodeKubelet:
    path, unread = Path(flags.get("config", "")), ""
    config: dict[str, Any] | None = None
    if "config" in flags:
        config, unread = _mapping(path) if path.is_absolute() else (None, _NO_FILE)
    kubeconfig, drop_ins = _absolute(flags.get("kubeconfig", "")), flags.get("config-dir", "")
    config_path = None if config is None else path
    found = NodeKubelet(name, flags, config_path, config or {}, None, _drop_ins(drop_ins), unread)
    for path in filter(None, (kubeconfig, _absolute(drop_ins), *found.certificates, found.pki, *found.serving)):
        check_alone(path, mounted=False)
    return replace(found, kubeconfig=kubeconfig) if kubeconfig and os.path.isfile(kubeconfig) else found


def _drop_ins(directory: str) -> tuple[tuple[Path, dict[str, Any]], ...]:
    paths = sorted(Path(directory).rglob("*.conf")) if directory.startswith("/") else []
    return tuple((path, read) for path in paths if (read := _mapping(path)[0]) is not None)


def _mapping(path: Path) -> tuple[dict[str, Any] | None, str]:
    """The mapping in a YAML or JSON file, or None and why it cannot be had. Raises ChangeableError."""
    try:
        read = next(iter(documents.from_yaml(documents.decoded(read_alone(path, mounted=False)))), None)
    except OSError as error:
        return None, f"{path}: {error.strerror or error}"
    except documents.UnreadableError as error:
        return None, f"{path}: {error}"
    return (read, "") if isinstance(read, dict) else (None, f"{path}: is no map")


def _arguments(path: Path) -> dict[str, str]:
    """The flags in a file: one a line (snaps), or as the value of a variable (an EnvironmentFile=)."""
    try:
        text = read_alone(path, mounted=False).decode(errors="surrogateescape")
    except OSError:
        return {}
    data = path.parent.parent  # of a snap: SNAP_DATA/args/kubelet
    known = {"SNAP_DATA": str(data), "SNAP_COMMON": str(data.parent / "common")}
    found: dict[str, str] = {}
    for line in map(str.strip, text.replace("\\\n", " ").splitlines()):  # systemd joins lines that end so
        if line and not line.startswith("#"):
            try:
                split = words(line)
            except ValueError:  # it is closed in another line; and kubelite of MicroK8s takes quotes for nothing
                split = _ASSIGNED.sub("", re.sub("[\"']", "", line)).split()
            found |= flags_of([_VARIABLE.sub(lambda m: known.get(m[1] or m[2], ""), word) for word in split])
    return found


def _of_rancher(name: str) -> dict[str, str] | None:
    """The flags of the kubelet of k3s or RKE2; None where there is none (a server with ``--disable-agent``)."""
    options = _rancher_options(_at(f"/etc/rancher/{name}/config.yaml"))
    data = options["data-dir"][-1] if options.get("data-dir") else str(_at(f"/var/lib/rancher/{name}"))
    agent = Path(data) / "agent"
    if not agent.is_absolute() or not os.path.isfile(agent / "kubelet.kubeconfig"):
        return None
    drop_ins = agent / "etc/kubelet.conf.d"
    flags = {
        "kubeconfig": str(agent / "kubelet.kubeconfig"),
        "config-dir": str(drop_ins),
        "tls-cert-file": str(agent / "serving-kubelet.crt"),
    }
    if not os.path.isfile(drop_ins / f"00-{name}-defaults.conf"):
        flags |= _RANCHER_FLAGS
    if options.get("node-name"):
        flags["hostname-override"] = options["node-name"][-1]
    return flags | flags_of([f"--{one.removeprefix('--')}" for one in options.get("kubelet-arg", ())])


def _rancher_options(path: Path) -> dict[str, list[str]]:
    """All values of the options in the file and in FILE.d; a later file replaces a list, but for ``NAME+``."""
    found: dict[str, list[str]] = {}
    later: list[Path] = []
    with suppress(OSError):
        later = sorted(one for one in Path(f"{path}.d").iterdir() if one.suffix in (".yaml", ".yml"))
    for key, value in (pair for one in (path, *later) for pair in (_mapping(one)[0] or {}).items()):
        name = str(key).removesuffix("+")
        values = [str(one) for one in (value if isinstance(value, list) else [value]) if isinstance(one, _SCALAR)]
        found[name] = [*(found.get(name, []) if str(key).endswith("+") else []), *values]
    return found


def flags_of(arguments: Sequence[str]) -> dict[str, str]:
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


def _at(path: str) -> Path:
    return ROOT / path.lstrip("/")


def _absolute(path: str) -> Path | None:
    return Path(path) if path.startswith("/") else None
