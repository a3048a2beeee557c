"""The part of a Pod the policy looks at, and reading it from the object a manifest or the API gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

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
    #: A pod known by its cgroup alone has no priority (which is not 0), and its requests are guesses.
    spec_known: bool = True
    #: Why a pod whose spec is not known is never evicted; empty if it may be.
    taken_critical: str = ""
    #: Its pod-level requests, for a kubelet with the gate of them off (`resources.with_gate_off`).
    ungated: Quantities = field(default_factory=dict)
    #: Of a service of the machine: where priority, request and class come from. Its oom_score_adj is its operator's.
    written: Mapping[str, str] = field(default_factory=dict)
    #: What `per_pod` worked out of it.
    answers: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def known_priority(self) -> int | None:
        """Its priority, 0 where its spec names none; None if its spec is not known."""
        return self.priority or 0 if self.spec_known else None


def per_pod(work_out: Callable[Concatenate[Pod, P], R]) -> Callable[Concatenate[Pod, P], R]:
    """Works out once what follows from a pod alone, which never changes. Arguments have to be given by place."""

    @wraps(work_out)
    def answer(pod: Pod, *args: Any) -> Any:
        key = work_out, args
        try:
            return pod.answers[key]
        except KeyError:
            made = pod.answers[key] = cast(Any, work_out)(pod, *args)
            return made

    return cast(Callable[Concatenate[Pod, P], R], answer)


def pod_from_object(obj: Mapping[str, Any]) -> Pod:
    """A v1.Pod from parsed JSON or YAML; PolicyError names the key that is wrong. Namespace and uid may be missing."""
    if not isinstance(obj, Mapping):
        raise PolicyError(f"a Pod is a map of keys, not {_kind(obj)}")
    if obj.get("kind", "Pod") != "Pod":
        raise PolicyError(f"kind: {obj['kind']!r} is not a Pod")
    whole = _Part(obj, "")
    meta, spec, status = (whole.map(key) for key in ("metadata", "spec", "status"))
    name = meta.text("name")
    if not name:
        raise PolicyError("metadata.name: missing")
    namespace = meta.text("namespace") or "default"
    return Pod(
        uid=meta.text("uid") or stable_uid(namespace, name),
        namespace=namespace,
        name=name,
        annotations=meta.strings("annotations"),
        labels=meta.strings("labels"),
        containers=_containers(spec, "containers"),
        init_containers=_containers(spec, "initContainers"),
        resources=None if spec.items.get("resources") is None else Resources(*spec.requests_limits()),
        overhead=spec.quantities("overhead"),
        priority=spec.integer("priority"),
        priority_class_name=spec.text("priorityClassName"),
        qos_class_status=status.text("qosClass"),
        tolerations=tuple([Toleration(*map(one.text, _TOLERATION)) for one in spec.maps("tolerations")]),
        grace_period_s=spec.integer("terminationGracePeriodSeconds"),
        phase=status.text("phase"),
        volumes=tuple([_volume(one) for one in spec.maps("volumes")]),
    )


def stable_uid(namespace: str, name: str) -> str:
    """A uid in the usual form from namespace and name: users choose those, so a hash without known collisions."""
    import hashlib  # 3.7 MiB, libcrypto, that the hot process does not need

    # A namespace has no slash: pairs differ as texts. A byte that is no UTF-8 is half a surrogate pair (os.fsdecode).
    digits = hashlib.sha256(f"{namespace}/{name}".encode(errors="surrogatepass")).hexdigest()[:32]
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


_TOLERATION = ("key", "operator", "value", "effect")


def _kind(value: object) -> str:
    names = {dict: "a map", list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__) if value is not None else "empty"


class _Part(NamedTuple):
    """A map in the object and the path of its keys. Null is not there; what is of another kind raises PolicyError."""

    items: Mapping[str, Any]
    path: str

    def value(self, key: str, kinds: Any, what: str) -> Any:
        value = self.items.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
            raise PolicyError(f"{self.path}{key}: must be {what}, not {_kind(value)}")
        return value

    def map(self, key: str) -> _Part:
        return _Part(self.value(key, Mapping, "a map") or {}, f"{self.path}{key}.")

    def maps(self, key: str) -> Iterator[_Part]:
        """The items of a list of maps."""
        for i, item in enumerate(self.value(key, list | tuple, "a list") or ()):
            path = f"{self.path}{key}[{i}]"
            if not isinstance(item, Mapping):
                raise PolicyError(f"{path}: must be a map, not {_kind(item)}")
            yield _Part(item, f"{path}.")

    def text(self, key: str) -> str:
        return str(self.value(key, str, "text (put it in quotes)") or "")

    def integer(self, key: str) -> int | None:
        found: int | None = self.value(key, int, "a whole number")
        return found

    def strings(self, key: str) -> Mapping[str, str]:
        found = self.map(key)
        for name, value in found.items.items():
            if not isinstance(name, str):
                raise PolicyError(f"{found.path}{name}: must be text (put it in quotes), not {_kind(value)}")
        return {name: found.text(name) for name in found.items}

    def quantity(self, key: str) -> Quantity | None:
        value = self.value(key, str | int | float, "a quantity such as 100Mi")
        # Kubernetes trims the text and reads an unquoted number by its digits; int refuses to print thousands.
        try:
            return None if value is None else Quantity.parse(str(value).strip())
        except ValueError as error:
            raise PolicyError(f"{self.path}{key}: {error}") from None

    def quantities(self, key: str) -> Quantities:
        found = self.map(key)
        return {str(name): found.quantity(name) or ZERO for name in found.items}

    def requests_limits(self) -> tuple[Quantities, Quantities]:
        resources = self.map("resources")
        return resources.quantities("requests"), resources.quantities("limits")


def _containers(spec: _Part, key: str) -> tuple[Container, ...]:
    parts = spec.maps(key)
    return tuple([Container(p.text("name"), *p.requests_limits(), p.text("restartPolicy") or None) for p in parts])


def _volume(one: _Part) -> Volume:
    source = next((str(key) for key, value in one.items.items() if key != "name" and value is not None), "")
    empty_dir = one.map("emptyDir")
    return Volume(one.text("name"), source, empty_dir.text("medium"), empty_dir.quantity("sizeLimit"))
