"""What `outrace explain` found, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from monitor.cli.output import format_amount, format_bytes, table_lines, yaml_lines
from monitor.policy.suspension import NO_GAIN, NOT_COVERED, OUTGROWN

Data = Mapping[str, Any]
#: Comparisons whose verdicts end alike for every pod.
_SAME_FOR_ALL = ("priority", "QoS class")


def lines(answer: Data) -> Iterator[str]:
    node, signal = answer["node"], answer["signal"]
    capacity = format_bytes(node["capacity"])
    yield f"{answer['time']}  {answer['source']}  node {node['cgroup']} of {capacity}  policy {answer['policy'][0]}"
    yield ""
    yield from _node(node)
    yield ""
    yield f"order of eviction for {signal} ({answer['policy'][0]}):"
    yield from _order(answer["order"])
    if "pod" in answer:
        yield ""
        yield from _pod(answer["pod"], signal)


def _node(node: Data) -> Iterator[str]:
    if node["thresholds"]:
        columns = ["signal", "kind", "value", "quantity", "available", "distance", "min reclaim", "met", "first to act"]
        yield from table_lines(columns, [_threshold(t) for t in node["thresholds"]])
        yield ""
    yield node["verdict"]
    yield from suspension_lines(node["braked"])
    yield from held_lines(node["held"])
    yield f"conditions a pass would raise now: {', '.join(node['conditions']) or 'none'}"
    if node["held_conditions"] is not None:
        yield f"conditions in force at the daemon: {', '.join(node['held_conditions']) or 'none'}"
    if node["cleanup"]:
        yield f"the node would first clean up: {', '.join(node['cleanup'])}"
    for e in node["evictions"]:
        yield f"{e['pod']}, with {e['grace_s']} s of grace: {e['message'].strip()}"


def _threshold(t: Data) -> list[object]:
    kind = t["kind"] if not t["grace_s"] else f"{t['kind']} for {t['grace_s']:g}s"
    met = "yes" if t["met"] else "not observed" if t["available"] is None else "no"
    figures = (t["quantity"], *(format_amount(t[of], t["signal"]) for of in ("available", "distance")))
    return [t["signal"], kind, t["value"], *figures, t["min_reclaim"], met, "<--" if t["first"] else ""]


def _order(order: Sequence[Data]) -> list[str]:
    if not order:
        return ["no pods"]
    names = list(dict.fromkeys(c["name"] for row in order for c in row["comparisons"]))
    rows = []
    for row in order:
        verdicts = {c["name"]: c["verdict"] for c in row["comparisons"]}
        rows.append([str(row["rank"]), row["pod"], *(verdicts.get(name, "-") for name in names)])
    for i, name in enumerate(names, 2):
        if name in _SAME_FOR_ALL:
            # "5: lower ones go first": what is the same in every row stands once, above them.
            names[i - 2] = f"{name} ({rows[0][i].partition(': ')[2]})"
            for cells in rows:
                cells[i] = cells[i].partition(": ")[0]
    return table_lines(["rank", "pod", *names], rows, prose=True)


def _pod(pod: Data, signal: str) -> Iterator[str]:
    yield f"{pod['pod']}: {_rank(pod)} for {signal}"
    facts = {name: value for name, value in pod.items() if name not in ("pod", "rank", "of", "next", "against")}
    yield from (f"  {line}" for line in yaml_lines(facts, inline=True))
    for other in pod["against"]:
        yield ""
        yield from _against(other)


def _rank(pod: Data) -> str:
    rank = f"rank {pod['rank']} of {pod['of']}"
    if pod["critical"]["critical"]:
        return f"never evicted (it would be {rank})"
    return f"{rank}, the next to be evicted" if pod["next"] else rank


def _against(other: Data) -> Iterator[str]:
    goes = "goes before it" if other["goes_first"] else "comes after it"
    yield f"  against {other['pod']} ({other['role']}, rank {other['rank']}), which {goes}:"
    rows = [[c["name"], c["one"], c["other"], "<-- decides" if c["decides"] else ""] for c in other["comparisons"]]
    for line in table_lines(["", "this pod", other["pod"], ""], rows, prose=True):
        yield f"    {line}".rstrip()


def suspension_lines(braked: Mapping[str, Any] | None) -> Iterator[str]:
    """No line while evictions are not suspended. ``braked``: `NodeState.braked`."""
    if braked is None:
        return
    pods, outside = format_bytes(braked["pods_bytes"]), format_bytes(braked["outside_bytes"])
    rate = "at an unknown rate"
    if braked["growth_outside"] is not None:
        rate = f"by {format_bytes(max(0, braked['growth_outside']))} a second"
    why = {
        NOT_COVERED: f"all pods that may be evicted have {pods} together, less than what is missing",
        OUTGROWN: f"what is outside of the pods grows {rate} and would use up all they have, {pods}, within a minute",
        NO_GAIN: "the last evictions gained nothing",
    }
    reason = why.get(braked["reason"], braked["reason"])
    yield f"evictions for {braked['signal']} are suspended for {braked['held_s']:.1f} s: {reason}"
    yield f"the kubelet would evict {braked['name']} now; {outside} are in use that no eviction frees"
    for taker in braked["takers"]:
        yield f"  {taker}"


def held_lines(held: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line for each held pod. ``held``: `monitor.side.holds.Holds.shown`."""
    for one in held:
        why = "it is the next victim" if one["reason"] == "victim" else "it grows"
        cap = "" if one["cap"] is None else f", at most {format_bytes(one['cap'])}"
        line = "" if one["second_line"] is None else f", killed below {format_bytes(one['second_line'])}"
        step = f" {one['step']} the kubelet's line" if one["step"] else ""
        yield (
            f"{one['pod']} is held{step} for {one['held_s']:.1f} s ({one['brake']}{cap}), because {why}; "
            f"{one['signal']} was {format_bytes(one['available'])}{line}; its time limit is in {one['left_s']:.0f} s"
        )
