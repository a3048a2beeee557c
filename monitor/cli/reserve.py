"""`outrace reserve`: what a node of this size publishes as allocatable, what it keeps back, and by which rule."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import click

from monitor.cli.output import Columns, emit, format_bytes, table, table_lines, yaml_lines
from monitor.errors import ConfigError
from monitor.policy import cce
from monitor.policy.configuration import HARD, Settings
from monitor.policy.errors import PolicyError
from monitor.policy.quantity import Quantity
from monitor.policy.signals import MEMORY, OWN_SIGNALS
from monitor.policy.sizing import (
    BYTES,
    CPU,
    DISK,
    EVICTION,
    HUGE,
    KUBE,
    LVM,
    MEMORY_RESOURCE,
    MILLICORES,
    SYSTEM,
    Sizing,
    Term,
    huge_pages,
    kubelet_configuration,
    kubelet_terms,
    reservations,
    size,
    written,
)
from monitor.policy.thresholds import DEFAULT_HARD
from monitor.race.reaction import REACTIONS, survived
from monitor.race.units import rate

KUBELET, CCE_V1, CCE_V2 = "kubelet", "cce-v1", "cce-v2"
#: The resources, the option (and, with _, the key of the JSON) that each has, and its unit.
_RESOURCES = ((MEMORY_RESOURCE, "memory", BYTES), (CPU, "cpu", MILLICORES), (DISK, "data-disk", BYTES))
#: Options that only the model `kubelet` has: those of CCE work these values out.
_KUBELET_ONLY = ("system-reserved", "kube-reserved", "eviction-hard", "enforce-node-allocatable", "kubelet-config")
#: How each way of reacting is called.
NAMES = {
    "kubelet": "kubelet, every 10 s",
    "hold": "outrace --mode hold",
    "enforce": "outrace --mode enforce",
}
#: Nothing larger is an integer of 64 bits any more.
_LARGEST = 1 << 62


class _Node(NamedTuple):
    """What is to be sized: amounts by resource, and where each number is from."""

    amounts: Mapping[str, int]
    origins: Mapping[str, str]


@click.command()
@click.option("--model", type=click.Choice([KUBELET, CCE_V1, CCE_V2]), default=KUBELET, show_default=True,
              help="Rules: the reservations that you give, or those that CCE computes.")  # fmt: skip
@click.option("--memory", metavar="QUANTITY", help="Memory of the node (MemTotal), such as 16Gi.")
@click.option("--cpu", metavar="QUANTITY", help="Cores of the node, such as 4 or 3500m.")
@click.option("--max-pods", type=click.IntRange(1, (1 << 31) - 1), metavar="N",
              help="Pods that the node may run (maxPods). cce-*: required.")  # fmt: skip
@click.option("--runtime", type=click.Choice([cce.DOCKER, cce.CONTAINERD]), default=cce.CONTAINERD, show_default=True,
              help="The container runtime (cce-v2).")  # fmt: skip
@click.option("--data-disk", metavar="QUANTITY", help="kubelet: the disk of /var/lib/kubelet; cce-*: the data disk.")
@click.option("--huge-pages", metavar="QUANTITY", help="Memory set aside as huge pages (hugetlb), of all sizes.")
@click.option("--this-node", is_flag=True, help="Read what you do not give from this machine and its kubelet.")
@click.option("--system-reserved", metavar="RESOURCE=QUANTITY,...", help="As in the kubelet: memory=1Gi,cpu=500m.")
@click.option("--kube-reserved", metavar="RESOURCE=QUANTITY,...", help="As in the kubelet.")
@click.option("--eviction-hard", metavar="SIGNAL<VALUE,...", help="As in the kubelet: memory.available<100Mi.")
@click.option("--enforce-node-allocatable", metavar="LIST", help="As in the kubelet: pods, or none. [pods]")
@click.option("--kubelet-config", metavar="FILE", help="Read these from a KubeletConfiguration.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "kubelet-config"]), default="table",
              show_default=True, help="Format; kubelet-config: a KubeletConfiguration in YAML.")  # fmt: skip
def reserve(model: str, output: str, **options: Any) -> None:
    """Compute Allocatable = Capacity - Reserved - Eviction threshold for a node, each term with its rule.

    Show also the growth against which eviction wins with that threshold.
    """
    from monitor.kernel import meminfo

    node = _node(model, options)
    try:
        sizings, made, apart = _kubelet(node, options) if model == KUBELET else _cce(model, node, options)
    except PolicyError as error:
        raise ConfigError(f"--{error}") from None
    memory = next(sizing for sizing in sizings if sizing.resource == MEMORY_RESOURCE)
    here = options["this_node"] and options["memory"] is None
    kernels = meminfo.kernels_share(huge_pages_apart=apart) if here else 0
    beyond = kernels if apart else max(memory.of(HUGE), kernels)  # huge pages are in what the kernel keeps
    growth = _growth(memory, kernels, beyond)
    resources = {sizing.resource: _resource(sizing) for sizing in sizings}
    keys = {option.replace("-", "_"): resources.get(name) for name, option, _ in _RESOURCES}
    answer = {"model": model, **keys, "kubelet_configuration": made, "growth": growth}
    if output == "kubelet-config":
        emit(output, answer, lambda: yaml_lines(made))
    else:
        emit(output, answer, lambda: [*_lines(sizings, node), "", *_growth_lines(memory, growth, beyond)])


#: The resources, a KubeletConfiguration that makes a node so, and whether huge pages do not count as available.
_Sized = tuple[list[Sizing], dict[str, Any], bool]


def _kubelet(node: _Node, options: Mapping[str, Any]) -> _Sized:
    from monitor.settings.read import read

    flags = {name: options[name.replace("-", "_")] for name in _KUBELET_ONLY[:-1]}
    resolved = read(flags, None, options["kubelet_config"], ask_kubelet=options["this_node"])
    for signal in OWN_SIGNALS:
        if entry := resolved.settings.maps[HARD].get(signal):
            raise ConfigError(
                f"{entry[1]}: {signal} is outrace's own: a kubelet does not start with it", f"write {MEMORY}<QUANTITY"
            )
    enforce = resolved.config.enforce_node_allocatable
    sizings = _sizings(node, partial(_kubelet_terms, resolved.settings), "pods" in enforce)
    texts = resolved.settings.texts
    reserved = {field: texts(field) for field in (SYSTEM, KUBE)}  # as they were written, and of all resources
    made = kubelet_configuration(reserved, texts(HARD), enforce, options["max_pods"])
    return sizings, made, resolved.config.huge_pages_apart


def _kubelet_terms(settings: Settings, resource: str, capacity: int) -> list[Term]:
    terms = kubelet_terms(resource, capacity, settings)
    for term in terms:
        if term.amount < 0:  # `nan%`, which a kubelet takes: the smallest integer of 64 bits
            raise ConfigError(
                f"{term.rule}: is no amount", "write a quantity such as 100Mi, or a percentage such as 5%"
            )
    return terms


def _cce(model: str, node: _Node, options: Mapping[str, Any]) -> _Sized:
    for name in _KUBELET_ONLY:
        if options[name.replace("-", "_")] is not None:
            raise PolicyError(f"{name}: {model} works this out itself; leave it out, or take --model kubelet")
    max_pods = options["max_pods"]
    if max_pods is None:
        raise PolicyError(
            f"max-pods: is missing, and {model} keeps memory back by it; give the node's maxPods, such as 110"
        )
    v2 = partial(cce.memory_v2, max_pods=max_pods, runtime=options["runtime"])
    memory = partial(cce.memory_v1, max_pods=max_pods) if model == CCE_V1 else v2
    terms: dict[str, Callable[[int], Sequence[Term]]] = {MEMORY_RESOURCE: memory, CPU: cce.cpu, DISK: cce.data_disk}
    sizings = _sizings(node, lambda resource, capacity: terms[resource](capacity))
    # Whether its kubelet knows them apart is not known here: on the safe side they count as available.
    return sizings, kubelet_configuration(reservations(sizings), DEFAULT_HARD, ["pods"], max_pods), False


def _sizings(node: _Node, terms: Callable[[str, int], Sequence[Term]], enforced: bool = True) -> list[Sizing]:
    """``terms``: what is kept back of a resource, by its capacity."""
    sizings = []
    for resource, _, unit in _RESOURCES:
        if (capacity := node.amounts.get(resource)) is None:
            continue
        kept = terms(resource, capacity)
        if resource == MEMORY_RESOURCE and node.amounts[HUGE]:
            kept = (*kept, huge_pages(node.amounts[HUGE], node.origins[HUGE]))
        try:
            sizings.append(size(resource, unit, capacity, kept, enforced))
        except PolicyError as error:
            raise ConfigError(f"{node.origins[resource]}: {error}", "keep back less, or take a larger node") from None
    return sizings


def _node(model: str, options: Mapping[str, Any]) -> _Node:
    """The capacities: what is given, else, with --this-node, what this machine has."""
    asked = {**{name: option for name, option, _ in _RESOURCES}, HUGE: "huge-pages"}
    given = {name: _amount(option, options[option.replace("-", "_")], name == CPU) for name, option in asked.items()}
    amounts = {name: amount for name, amount in given.items() if amount is not None}
    origins = {name: f"--{option}" for name, option in asked.items()}
    if options["this_node"]:
        for resource, (amount, origin) in _this_node(model).items():
            if resource not in amounts:
                amounts[resource], origins[resource] = amount, origin
    if MEMORY_RESOURCE not in amounts:
        raise ConfigError("--memory: is missing", "give the node's memory, such as --memory 16Gi, or --this-node")
    huge, memory = amounts.setdefault(HUGE, 0), amounts[MEMORY_RESOURCE]
    if huge > memory:
        raise ConfigError(
            f"{origins[HUGE]}: {huge} bytes of huge pages are more than the node's memory of {memory}",
            f"set aside less, or correct {origins[MEMORY_RESOURCE]}",
        )
    return _Node(amounts, origins)


def _this_node(model: str) -> dict[str, tuple[int, str]]:
    from monitor.kernel import disks, meminfo

    found = {
        MEMORY_RESOURCE: (meminfo.mem_total(), "MemTotal of this node"),
        HUGE: (meminfo.huge_pages(), "Hugetlb of this node"),
    }
    if cores := os.cpu_count():
        found[CPU] = (cores * 1000, "CPUs of this node")
    if model == KUBELET:
        # (Of CCE's data disk the file system is what is left after LVM has had its part: that is not its size.)
        path = disks.find_disks().nodefs
        found[DISK] = (disks.file_system(path).capacity, f"the file system of {path}")
    return found


def _amount(option: str, text: str | None, milli: bool = False) -> int | None:
    """A capacity, in bytes or millicores; what is not whole is rounded down: there is no part of a byte."""
    if text is None:
        return None
    example = "4 or 3500m" if milli else "16Gi"
    try:
        nanos = Quantity.parse(text).nanos
    except PolicyError as error:
        raise ConfigError(f"--{option}: {text!r}: {error}", f"write a quantity such as {example}") from None
    amount = nanos // 10**6 if milli else nanos // 10**9
    if not (0 if option == "huge-pages" else 1) <= amount < _LARGEST:
        raise ConfigError(f"--{option}: {text!r} is no capacity of a node", f"write a quantity such as {example}")
    return amount


# -- what is printed


def _resource(sizing: Sizing) -> dict[str, Any]:
    unit = sizing.unit
    amounts = {
        "capacity": sizing.capacity,
        "system_reserved": sizing.of(SYSTEM),
        "kube_reserved": sizing.of(KUBE),
        "reserved": sizing.of(SYSTEM, KUBE, LVM),
        "eviction_threshold": sizing.of(EVICTION),
        "allocatable": sizing.allocatable,
    }
    if sizing.resource == MEMORY_RESOURCE:
        amounts["huge_pages"] = sizing.of(HUGE)
    if sizing.resource != DISK:  # no cgroup limits a disk
        amounts["kubepods_limit"] = sizing.pods_limit
    terms = [
        {"part": term.part, "name": term.name, unit: term.amount, "rounding": term.rounding, "rule": term.rule}
        for term in sizing.terms
    ]
    return {f"{name}_{unit}": amount for name, amount in amounts.items()} | {"terms": terms}


def _lines(sizings: Sequence[Sizing], node: _Node) -> list[str]:
    rows = [
        (of.resource, term, format_bytes(amount) if of.unit == BYTES else f"{amount}m", written(of, amount), rule)
        for of in sizings
        for term, amount, rule in _terms(of, node.origins[of.resource])
    ]
    return table_lines(["resource", "term", "about", "exact", "rule"], rows)


def _terms(sizing: Sizing, origin: str) -> Iterator[tuple[str, int, str]]:
    yield "capacity", sizing.capacity, origin
    for term in sizing.terms:
        rounding = f" (rounded {term.rounding})" if term.rounding in ("up", "down") else ""
        yield f"- {term.name}", term.amount, f"{term.rule}{rounding}"
    formula = "capacity - reserved - eviction threshold" + (" - huge pages" if sizing.of(HUGE) else "")
    yield "= allocatable", sizing.allocatable, f"{formula}: what the node publishes"
    if sizing.resource != DISK:
        why = ", as a weight" if sizing.resource == CPU else ": pods are evicted before they use all of it"
        yield "limit of kubepods", sizing.pods_limit, f"capacity - reserved{why}" if sizing.enforced else "not enforced"


def _growth(memory: Sizing, kernels: int, beyond: int) -> dict[str, Any]:
    """``kernels``: bytes that the kernel keeps (`monitor.kernel.meminfo.kernels_share`; 0: not known). ``beyond``:
    bytes that count as available, and no process can grow into them.
    """
    threshold = memory.of(EVICTION)
    return {
        "threshold_bytes": threshold,
        # Pods that use all of Allocatable leave this much above the threshold: what is reserved.
        "system_may_use_bytes": memory.of(SYSTEM, KUBE),
        "kernel_keeps_bytes": kernels,
        "survives": [
            {
                "reaction": each.name,
                "always_bytes_per_s": survived(threshold - beyond, each, each.worst_ms),
                "at_best_bytes_per_s": survived(threshold - beyond, each, each.best_ms),
                "rule": each.rule,
            }
            for each in REACTIONS
        ],
    }


def _growth_lines(memory: Sizing, growth: Mapping[str, Any], beyond: int) -> Iterator[str]:
    kernels = growth["kernel_keeps_bytes"]
    if threshold := growth["threshold_bytes"]:
        yield f"With {MEMORY}<{written(memory, threshold)}, eviction wins against this growth:"
        if beyond:
            what = "that the kernel keeps" if beyond == kernels else "in huge pages"
            yield f"({written(memory, beyond)} {what} count as available, and pods cannot grow into them.)"
        columns: Columns = {
            "reaction": lambda each: NAMES[each["reaction"]],
            "always wins up to": lambda each: speed(each["always_bytes_per_s"]),
            "never above": lambda each: speed(each["at_best_bytes_per_s"]),
            "from a crossing": "rule",
        }
        yield from table(columns, growth["survives"], prose=True)
        system = written(memory, growth["system_may_use_bytes"])
        yield f"While pods use no more than their requests, the system may use {system} before any is evicted."
    else:
        yield f"No hard threshold for {MEMORY}: eviction wins against no growth at all."


def speed(bytes_per_s: int | None) -> str:
    return "nothing" if bytes_per_s is None else rate(bytes_per_s)
