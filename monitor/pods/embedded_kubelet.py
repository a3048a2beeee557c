"""A kubelet inside another process: k3s (`k3s server|agent`) and MicroK8s (`kubelite`). Its arguments, as a process of
its own would have them; RKE2 and k0s start one as a process.

k3s: `/etc/rancher/k3s/config.yaml` (`kubelet-arg`); since 1.32 its defaults are in `00-k3s-defaults.conf` of
`agent/etc/kubelet.conf.d`. It hides its arguments (they may have a token): then only that file has them.
MicroK8s: `args/kubelet`, one flag a line, with ${SNAP_DATA}.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from monitor import documents

#: Where k3s keeps its state, and its options.
K3S_DATA = Path("/var/lib/rancher/k3s")
K3S_CONFIG = Path("/etc/rancher/k3s/config.yaml")
MICROK8S = Path("/var/snap/microk8s/current")
#: What k3s before 1.32 gives its kubelet as flags; since then it is in its file. No memory.available.
_K3S_FLAGS = (
    "--eviction-hard=imagefs.available<5%,nodefs.available<5%",
    "--eviction-minimum-reclaim=imagefs.available=10%,nodefs.available=10%",
)
_K3S_DEFAULTS = "00-k3s-defaults.conf"
_K3S_NAMES = ("k3s", "k3s-server", "k3s-agent")
_KUBELITE = "kubelite"
NAMES = (*_K3S_NAMES, _KUBELITE)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def arguments(pid: int, name: str, given: Sequence[str]) -> list[str] | None:
    """What the kubelet in process ``pid`` was started with; None where there is none. ``given`` are the arguments of
    the process, its program first.
    """
    root = Path(f"/proc/{pid}/root")
    if name == _KUBELITE:
        return _of_microk8s(root, given, _environment(pid))
    if len(given) == 1:
        given = given[0].split()  # its title, written over its arguments
    verbs = {"server", "agent"} & set(given[1:])
    if name not in _K3S_NAMES or not (verbs or name != "k3s"):
        return None
    return _of_k3s(root, given, _environment(pid))


def installed() -> tuple[Path, list[str]] | None:
    """Of one that does not run (yet): the file that shows it is installed here, and its arguments."""
    here = Path("/")
    if os.path.isfile(MICROK8S / "args/kubelet") and (found := _of_microk8s(here, (), {})) is not None:
        return MICROK8S / "args/kubelet", found
    if (found := _of_k3s(here, (), {})) is not None:
        return next(Path(one.partition("=")[2]) for one in found if one.startswith("--kubeconfig=")), found
    return None


def _of_k3s(root: Path, given: Sequence[str], environment: Mapping[str, str]) -> list[str] | None:
    """None for a server without an agent (``--disable-agent``): it has no kubelet."""
    options = _k3s_options(root, given, environment)
    agent = Path(_last(options, "data-dir", "d") or K3S_DATA) / "agent"
    if not agent.is_absolute() or not os.path.isfile(_below(root, agent / "kubelet.kubeconfig")):
        return None
    drop_ins = agent / "etc/kubelet.conf.d"
    found = [
        f"--kubeconfig={agent / 'kubelet.kubeconfig'}",
        f"--config-dir={drop_ins}",
        f"--tls-cert-file={agent / 'serving-kubelet.crt'}",
    ]
    if not os.path.isfile(_below(root, drop_ins / _K3S_DEFAULTS)):
        found += _K3S_FLAGS
    if node := _last(options, "node-name") or environment.get("K3S_NODE_NAME", ""):
        found.append(f"--hostname-override={node}")
    return found + [f"--{one.removeprefix('--')}" for one in options.get("kubelet-arg", ())]


def _k3s_options(root: Path, given: Sequence[str], environment: Mapping[str, str]) -> dict[str, list[str]]:
    """All values of its options: of its file, of those in FILE.d, and of its command line, each after the one before.
    A later file takes the place of a list, except with ``NAME+``.
    """
    given_words = _words(given)
    path = Path(environment.get("K3S_CONFIG_FILE") or _last(given_words, "config", "c") or K3S_CONFIG)
    found: dict[str, list[str]] = {}
    if path.is_absolute():  # it may be a URL as well
        more = _below(root, Path(f"{path}.d"))
        files = [_below(root, path)]
        with suppress(OSError):
            files += sorted(one for one in more.iterdir() if one.suffix in (".yaml", ".yml"))
        for key, values in (pair for one in files for pair in _yaml(one)):
            added = found.get(key.removesuffix("+"), []) if key.endswith("+") else []
            found[key.removesuffix("+")] = [*added, *values]
    for key, values in given_words.items():
        found[key] = [*found.get(key, ()), *values]
    return found


def _words(given: Sequence[str]) -> dict[str, list[str]]:
    """``--name=value``, ``--name value`` and ``-n value``."""
    found: dict[str, list[str]] = {}
    for index, one in enumerate(given):
        if not one.startswith("-"):
            continue
        name, equals, value = one.lstrip("-").partition("=")
        following = given[index + 1] if index + 1 < len(given) and not given[index + 1].startswith("-") else ""
        found.setdefault(name, []).append(value if equals else following)
    return found


def _yaml(path: Path) -> Iterator[tuple[str, list[str]]]:
    content: Any = None
    with suppress(OSError, documents.UnreadableError):
        content = next(iter(documents.from_yaml(documents.decoded(documents.read_bytes(path)))), None)
    for key, value in content.items() if isinstance(content, dict) else ():
        values = value if isinstance(value, list) else [value]
        yield str(key), [str(one) for one in values if isinstance(one, str | int | float)]


def _of_microk8s(root: Path, given: Sequence[str], environment: Mapping[str, str]) -> list[str] | None:
    path = Path(_last(_words(given), "kubelet-args-file") or MICROK8S / "args/kubelet")
    if not path.is_absolute():
        return None
    with suppress(OSError):
        # The revision's directory: after a refresh the next one is in force, and `current` leads there.
        if _below(root, path).samefile(_below(root, MICROK8S / "args/kubelet")):
            path = MICROK8S / "args/kubelet"
    data = path.parent.parent
    known = {"SNAP_COMMON": str(data.parent / "common"), **environment, "SNAP_DATA": str(data)}
    try:
        text = documents.read_bytes(_below(root, path)).decode(errors="surrogateescape")
    except OSError:
        return None
    lines = (line.strip() for line in text.splitlines())
    kept = (re.sub("[\"']", "", line) for line in lines if line and not line.startswith("#"))
    return [_VARIABLE.sub(lambda m: known.get(m[1] or m[2], ""), word) for line in kept for word in line.split()]


def _last(options: Mapping[str, Sequence[str]], *names: str) -> str:
    return next((options[name][-1] for name in names if options.get(name)), "")


def _below(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def _environment(pid: int) -> dict[str, str]:
    with suppress(OSError):
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape")
        return dict(one.split("=", 1) for one in text.split("\0") if "=" in one)
    return {}
