"""What ``--pods`` can say, and ``--pods auto`` without a cluster: `outrace run` checks it before heavier imports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

AUTO, KUBELET, APISERVER, MANIFESTS, CGROUPS = "auto", "kubelet", "apiserver", "manifests", "cgroups"
#: Of a machine without Kubernetes: systemd's units, containers, plain cgroups.
SERVICES = "services"
#: Those of a cluster: names, requests and priorities are the API's.
CLUSTER = (KUBELET, APISERVER)
_FORMS = "use auto, kubelet, kubelet:URL, apiserver, manifests:DIR, services or cgroups"


def check_spec(spec: str) -> tuple[str, str]:
    """Split a ``--pods`` value into kind and argument; ValueError if there is no such source."""
    kind, colon, argument = spec.partition(":")
    takes_none = kind not in (MANIFESTS, KUBELET)
    if kind not in (AUTO, KUBELET, APISERVER, MANIFESTS, SERVICES, CGROUPS) or (takes_none and colon):
        raise ValueError(f"{spec!r} is not a source of pods; {_FORMS}")
    if kind == MANIFESTS and not argument:
        raise ValueError(f"{spec!r} names no directory; {_FORMS}")
    if kind == KUBELET and colon and not argument.startswith("https://"):
        # Any process can serve the read-only port (http) while the kubelet restarts.
        raise ValueError(f"{spec!r} names no https URL, by whose certificate the kubelet is known; {_FORMS}")
    return kind, argument


# ---- what ``--pods auto`` has chosen, and what it chooses where there is no cluster: without a client for one

#: Where a VM has manifests of its own, if nothing else is configured.
MANIFEST_DIR = Path("/etc/outrace/pods")


@dataclass(frozen=True)
class Choice:
    """``spec``: what ``--pods`` would say; ``why``: a line for the log; ``tried``: what did not do, and why;
    ``kubelet``: whether there is one here (a choice of cgroups may change then).
    """

    spec: str
    why: str
    tried: tuple[str, ...] = ()
    kubelet: bool = False


def without_cluster(tried: Sequence[str] = (), kubelet: bool = False, kubepods: Path | None = None) -> Choice:
    """Manifests where their directory is; services if nothing is of Kubernetes (``kubepods`` is); else cgroups."""
    none = "no pods of a cluster can be had" if kubelet or tried else "no kubelet here"
    if MANIFEST_DIR.is_dir():
        return Choice(f"{MANIFESTS}:{MANIFEST_DIR}", f"{MANIFEST_DIR} is there, and {none}", tuple(tried), kubelet)
    if kubelet or tried:
        return Choice(CGROUPS, f"{none}, and there is no {MANIFEST_DIR}", tuple(tried), kubelet)
    if kubepods is not None:
        unknown = f"{kubepods} holds pods, and their kubelet's files are in none of the known places"
        why = f"{none}, but {kubepods} holds pods, and there is no {MANIFEST_DIR}"
        return Choice(CGROUPS, why, (f"{unknown}: give --kubelet-config FILE and --kubeconfig FILE",))
    return Choice(SERVICES, f"{none}, and there is no {MANIFEST_DIR}")
