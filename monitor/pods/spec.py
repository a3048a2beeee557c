"""What ``--pods`` can say. A module of its own because `outrace run` checks it before anything heavier is imported."""

from __future__ import annotations

AUTO, KUBELET, APISERVER, MANIFESTS, CGROUPS = "auto", "kubelet", "apiserver", "manifests", "cgroups"
#: Of a machine without Kubernetes: systemd's units, containers, plain cgroups.
SERVICES = "services"
#: Those of a cluster: names, requests and priorities are the API's.
CLUSTER = (KUBELET, APISERVER)
_FORMS = "use auto, kubelet, kubelet:URL, apiserver, manifests:DIR, services or cgroups"


def check_spec(spec: str) -> tuple[str, str]:
    """Split a ``--pods`` value into kind and argument; ValueError if there is no such source."""
    kind, colon, argument = spec.partition(":")
    if kind not in (AUTO, KUBELET, APISERVER, MANIFESTS, SERVICES, CGROUPS):
        raise ValueError(f"{spec!r} is not a source of pods; {_FORMS}")
    if kind == MANIFESTS and not argument:
        raise ValueError(f"{spec!r} names no directory; {_FORMS}")
    if kind == KUBELET and colon and not argument.startswith(("https://", "http://")):
        raise ValueError(f"{spec!r} names no http or https URL; {_FORMS}")
    if kind not in (MANIFESTS, KUBELET) and colon:
        raise ValueError(f"{spec!r} is not a source of pods; {_FORMS}")
    return kind, argument
