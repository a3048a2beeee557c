"""The part of a Pod the policy looks at, and reading it from the object a manifest or the API gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from monitor.policy.errors import PolicyError
from monitor.policy.quantity import ZERO, Quantity

Quantities = Mapping[str, Quantity]
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Container:
    """A container; as an init container with `restart_policy` "Always" it is a sidecar."""

    name: str
    requests: Quantities = field(default_factory=dict)
    limits: Quantities = field(default_factory=dict)
    restart_policy: str | None = None

    @property
    def sidecar(self) -> bool:
        """Meant for init containers: one that keeps running beside the regular containers."""
        return self.restart_policy == "Always"


@dataclass(frozen=True, slots=True)
class Resources:
    """Pod-level requests and limits (`spec.resources`)."""

    requests: Quantities = field(default_factory=dict)
    limits: Quantities = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration; an empty key, effect or operator means what it means in Kubernetes (any, any, Equal)."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume. `source` is the key that says what it is (`emptyDir`, `hostPath`, ...); the rest is for `emptyDir`."""

    name: str
    source: str = ""
    medium: str = ""
    size_limit: Quantity | None = None

    @property
    def local(self) -> bool:
        """Its content takes space on the node's own disk and is counted against the pod."""
        return self.source in _LOCAL_SOURCES or (self.source == "emptyDir" and not self.medium)


_LOCAL_SOURCES = frozenset({"hostPath", "configMap", "gitRepo"})


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod. `grace_period_s` is terminationGracePeriodSeconds; `resources` None means no `spec.resources` at all."""

    uid: str
    namespace: str
    name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    containers: Sequence[Container] = ()
    init_containers: Sequence[Container] = ()
    resources: Resources | None = None
    overhead: Quantities = field(default_factory=dict)
    priority: int | None = None
    priority_class_name: str = ""
    qos_class_status: str = ""
    tolerations: Sequence[Toleration] = ()
    grace_period_s: int | None = None
    phase: str = ""
    volumes: Sequence[Volume] = ()
    #: Whether its spec is known. A pod known by its cgroup alone has no priority (which is not 0), and its requests are
    #: guesses.
    spec_known: bool = True
    #: Why a pod whose spec is not known is never evicted; empty if it may be.
    taken_critical: str = ""
    #: Whether its containers are sums of so many that each is not kept: their names are not those of any container.
    containers_summed: bool = False
    #: Not empty for a service, session or container of the machine itself (`monitor.policy.services`): where its
    #: priority, request and class come from. Its oom_score_adj is its operator's, and stays as it is.
    written: Mapping[str, str] = field(default_factory=dict)
    #: What `per_pod` worked out of it.
    answers: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def known_priority(self) -> int | None:
        """Its priority, 0 where its spec names none; None if its spec is not known."""
        return self.priority or 0 if self.spec_known else None


def per_pod(work_out: Callable[Concatenate[Pod, P], R]) -> Callable[Concatenate[Pod, P], R]:
    """Works out once what follows from a pod alone, which never changes: every pass needs it. The arguments of the
    function have to be given by place.
    """

    @wraps(work_out)
    def answer(pod: Pod, *args: Any) -> Any:
        key = work_out, args
        try:
            return pod.answers[key]
        except KeyError:
            made = pod.answers[key] = work_out(pod, *args)  # type: ignore[call-arg]
            return made

    return answer


def pod_from_object(obj: Mapping[str, Any]) -> Pod:
    """A v1.Pod from parsed JSON or YAML; raises PolicyError naming the key that is wrong.

    A missing namespace is "default"; a missing uid is made from namespace and name, the same every time.
    """
    if not isinstance(obj, Mapping):
        raise PolicyError(f"a Pod is a map of keys, not {_kind(obj)}")
    if obj.get("kind", "Pod") != "Pod":
        raise PolicyError(f"kind: {obj['kind']!r} is not a Pod")
    meta, spec, status = (_mapping(obj, key, key) for key in ("metadata", "spec", "status"))
    name = _text(meta, "name", "metadata.name")
    if not name:
        raise PolicyError("metadata.name: missing")
    namespace = _text(meta, "namespace", "metadata.namespace") or "default"
    resources = spec.get("resources")
    return Pod(
        uid=_text(meta, "uid", "metadata.uid") or stable_uid(namespace, name),
        namespace=namespace,
        name=name,
        annotations=_strings(meta, "annotations", "metadata.annotations"),
        labels=_strings(meta, "labels", "metadata.labels"),
        containers=_containers(spec, "containers"),
        init_containers=_containers(spec, "initContainers"),
        resources=None if resources is None else Resources(*_requests_limits(spec, "spec")),
        overhead=_quantities(spec, "overhead", "spec.overhead"),
        priority=_integer(spec, "priority", "spec.priority"),
        priority_class_name=_text(spec, "priorityClassName", "spec.priorityClassName"),
        qos_class_status=_text(status, "qosClass", "status.qosClass"),
        tolerations=_tolerations(spec),
        grace_period_s=_integer(spec, "terminationGracePeriodSeconds", "spec.terminationGracePeriodSeconds"),
        phase=_text(status, "phase", "status.phase"),
        volumes=_volumes(spec),
    )


def stable_uid(namespace: str, name: str) -> str:
    """A uid in the usual 8-4-4-4-12 form that depends on namespace and name only.

    Users name their units and cgroups, so it is a hash for which no two texts of one value are known (128 bits of
    SHA-256).
    """
    import hashlib  # 3.7 MiB, libcrypto, that the hot process does not need

    # No namespace has a slash, so different pairs give different texts. A byte of a path that is no UTF-8 is half of a
    # surrogate pair here (os.fsdecode), which surrogatepass keeps apart from every other text.
    digits = hashlib.sha256(f"{namespace}/{name}".encode(errors="surrogatepass")).hexdigest()[:32]
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _kind(value: object) -> str:
    names = {dict: "a map", list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__) if value is not None else "empty"


def _mapping(parent: Mapping[str, Any], key: str, path: str) -> Mapping[str, Any]:
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise PolicyError(f"{path}: must be a map, not {_kind(value)}")
    return value


def _text(parent: Mapping[str, Any], key: str, path: str) -> str:
    value = parent.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise PolicyError(f"{path}: must be text (put it in quotes), not {_kind(value)}")
    return value


def _integer(parent: Mapping[str, Any], key: str, path: str) -> int | None:
    value = parent.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise PolicyError(f"{path}: must be a whole number, not {_kind(value)}")
    return value


def _strings(parent: Mapping[str, Any], key: str, path: str) -> Mapping[str, str]:
    found = _mapping(parent, key, path)
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, str | None):
            raise PolicyError(f"{path}.{name}: must be text (put it in quotes), not {_kind(value)}")
    return {name: value or "" for name, value in found.items()}


def _quantities(parent: Mapping[str, Any], key: str, path: str) -> Quantities:
    return {str(name): _quantity(value, f"{path}.{name}") for name, value in _mapping(parent, key, path).items()}


def _quantity(value: object, path: str) -> Quantity:
    if value is None:
        return ZERO
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PolicyError(f"{path}: must be a quantity such as 100Mi, not {_kind(value)}")
    # Kubernetes trims the text and reads an unquoted number by its digits. An integer of more digits than int will
    # print is no quantity either.
    try:
        return Quantity.parse(str(value).strip())
    except ValueError as error:
        raise PolicyError(f"{path}: {error}") from None


def _requests_limits(parent: Mapping[str, Any], path: str) -> tuple[Quantities, Quantities]:
    path = f"{path}.resources"
    resources = _mapping(parent, "resources", path)
    return (
        _quantities(resources, "requests", f"{path}.requests"),
        _quantities(resources, "limits", f"{path}.limits"),
    )


def _maps(spec: Mapping[str, Any], key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The items of a list of maps, each with its path."""
    found = spec.get(key)
    if found is not None and not isinstance(found, list | tuple):
        raise PolicyError(f"spec.{key}: must be a list, not {_kind(found)}")
    for i, item in enumerate(found or ()):
        path = f"spec.{key}[{i}]"
        if not isinstance(item, Mapping):
            raise PolicyError(f"{path}: must be a map, not {_kind(item)}")
        yield path, item


def _containers(spec: Mapping[str, Any], key: str) -> tuple[Container, ...]:
    found = []
    for path, item in _maps(spec, key):
        requests, limits = _requests_limits(item, path)
        policy = _text(item, "restartPolicy", f"{path}.restartPolicy") or None
        found.append(Container(_text(item, "name", f"{path}.name"), requests, limits, policy))
    return tuple(found)


def _tolerations(spec: Mapping[str, Any]) -> tuple[Toleration, ...]:
    keys = ("key", "operator", "value", "effect")
    return tuple(
        [Toleration(*[_text(item, k, f"{path}.{k}") for k in keys]) for path, item in _maps(spec, "tolerations")]
    )


def _volumes(spec: Mapping[str, Any]) -> tuple[Volume, ...]:
    found = []
    for path, item in _maps(spec, "volumes"):
        source = next((str(key) for key, value in item.items() if key != "name" and value is not None), "")
        empty_dir = _mapping(item, "emptyDir", f"{path}.emptyDir")
        limit = empty_dir.get("sizeLimit")
        found.append(
            Volume(
                _text(item, "name", f"{path}.name"),
                source,
                _text(empty_dir, "medium", f"{path}.emptyDir.medium"),
                None if limit is None else _quantity(limit, f"{path}.emptyDir.sizeLimit"),
            )
        )
    return tuple(found)
