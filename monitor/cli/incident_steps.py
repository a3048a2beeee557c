"""The steps of an incident's timeline as sentences.

Names of processes are whatever a process called itself, so nothing unprintable gets through to the terminal.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from typing import Any

from monitor.cli.output import format_bytes
from monitor.race.units import span

Json = Mapping[str, Any]

#: Fields of a step that are bytes although their name does not say so.
_SIZES = frozenset({"usage", "working_set", "available", "quantity", "rss", "limit", "freed"})

#: Processes of a pod whose ends are named.
_SHOWN = 8


def clean(text: object) -> str:
    """The text with everything unprintable as an escape: `\\x1b` cannot move anybody's cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def describe(step: Json) -> str:
    """What happened in a step; a kind that is not known as its name and its fields."""
    text = _TEXTS.get(step["what"])
    if text is not None:
        try:
            return _fill(text, step) if isinstance(text, str) else text(step)
        except KeyError:
            pass  # of another version: by its fields, then
    fields = [key for key, value in step.items() if key not in ("t_ms", "what") and value is not None]
    rest = [f"{clean(key)} {_value(key, step[key])}" for key in fields]
    return clean(step["what"]).replace("_", " ") + (": " + ", ".join(rest) if rest else "")


def _value(key: str, value: object) -> str:
    is_size = key.endswith("bytes") or key in _SIZES
    return format_bytes(value) if is_size and type(value) is int else clean(value)


class _Formatter(string.Formatter):
    def format_field(self, value: Any, spec: str) -> str:
        return format_bytes(value) if spec == "bytes" else clean(format(value, spec))


#: A part of a text in brackets is left out where its first field is null or empty.
_OPTIONAL = re.compile(r"\[([^\]{]*\{(\w+)[^\]]*)\]")


def _fill(text: str, step: Json) -> str:
    """The text with fields of the step; `{usage:bytes}` for sizes. KeyError for one that it does not have."""
    text = _OPTIONAL.sub(lambda part: part[1] if step.get(part[2]) not in (None, "") else "", text)
    return _Formatter().vformat(text, (), step)


def process(found: Json) -> str:
    """A process as `name (pid 12)`."""
    return _fill("{comm} (pid {pid})", found)


def _reclaim(step: Json) -> str:
    return "the kernel begins to reclaim" + ("" if step["memcg"] == "global" else _fill(" in {memcg}", step))


def _decided(step: Json) -> str:
    verb = "would evict" if step["observed"] else "decides to evict"
    where = ", in the kernel" if step["trigger"] == "kernel" else ""
    why = "(rank {rank}, grace {grace_s:g} s[, working set {pod_working_set:bytes}])"
    return _fill(f"{{by}} {verb} {{pod}} {why}{where}", step)


def _refused(step: Json) -> str:
    refuses = "a PodDisruptionBudget keeps" if step["budget"] else "the API server does not evict"
    then = "[; {instead} is evicted instead]" if step["instead"] else "; nobody is evicted"
    return _fill(f"{refuses} {{names}}: {{problem}}{then}", {**step, "names": ", ".join(step["pods"])})


#: Of holds that are begun and ended too often (`monitor.side.holds`).
_LEFT_OUT = "[; {left_out} more beginnings, changes and ends of holds of it are left out before this]"


def _released(step: Json) -> str:
    more = "[; the kubelet evicted {instead} instead]" + _LEFT_OUT
    return _fill(
        "{pod} is not held any more ({why}) after {took}; it grew {grew:bytes}" + more,
        {**step, "took": span(step["held_ms"] * 1e6)},
    )


def _signalled(step: Json) -> str:
    return _fill(f"{_name_of(step['signal'])} sent to {{pod}}", step)


def _name_of(signal: int) -> str:
    return {9: "SIGKILL", 15: "SIGTERM"}.get(signal, f"signal {signal}")


def _gone(step: Json) -> str:
    ended = [
        f"pid {one['pid']} "
        + (f"by {_name_of(one['signal'])}" if one["signal"] else f"with exit code {one['exit_code']}")
        for one in (step.get("exits") or ())[:_SHOWN]
    ]
    ends = "[; they ended: {ends}]"
    return _fill("nobody is left of {pod}[; it gave back {freed:bytes}]" + ends, {**step, "ends": ", ".join(ended)})


def _oom(step: Json) -> str:
    limit = "the machine is out of memory" if step["limit_of"] == "global" else "limit of {limit_of}"
    victim = "{comm} (pid {pid})[ of {pod}], rss {rss:bytes}, oom_score_adj {oom_score_adj}"
    usage = "[ (usage {usage:bytes} of {limit:bytes})]"
    return _fill(f"OOM KILLER picks {victim}: {limit}{usage}; called by {{invoker}} (pid {{invoker_pid}})", step)


def _sigkill(step: Json) -> str:
    sender = "the kernel" if step["from"] == "kernel" else "{from}"
    return _fill(f"SIGKILL to {{comm}} (pid {{pid}})[ of {{pod}}] from {'outrace' if step['ours'] else sender}", step)


def _checked(step: Json) -> str:
    return _fill(f"{{source}} {'confirms it' if step['agrees'] else 'DISAGREES'}: {{detail}}", step)


def _grew(step: Json) -> str:
    return _fill(
        "{grower} had grown by {bytes:bytes} in {in_s:g} s", {**step, "grower": step.get("pod") or step["domain"]}
    )


#: One for each kind of step that monitor/race/timeline.py makes.
_TEXTS: dict[str, str | Callable[[Json], str]] = {
    "crossed": (
        "{kind} threshold crossed: {signal} below {quantity:bytes} in {domain} "
        "(usage {usage:bytes}, working set {working_set:bytes})"
    ),
    "seen": "{by} sees it",
    "held": (
        "evictions are suspended: they would not help ({reason}[, pods have {pods:bytes}][, outside {outside:bytes}])"
        "[; a kubelet would evict {kubelet_would_evict}]"
    ),
    "not_held": "evictions are resumed",
    "decided": _decided,
    "refused": _refused,
    "pod_held": (
        "{pod} is held ({reason}, {brake}[, at most {cap:bytes}]): it has {usage:bytes}[, {step} the kubelet's line]"
        "[; killed below {second_line:bytes}]" + _LEFT_OUT
    ),
    "pod_released": _released,
    "stalled": "{pod} waits for memory, {share:.0%} of the time; it lacks {lacks:bytes} ({why}[, {cause}])[: {over}]",
    "signalled": _signalled,
    "gone": _gone,
    "reported_evicted": "the API server reports {pod} as Evicted by the kubelet: {message}",
    "clear": "{kind} threshold clear again ({signal})",
    "reclaim": _reclaim,
    "oom": _oom,
    "exiting": "the OOM killer marks {comm} (pid {pid})[ of {pod}], which is dying already",
    "sigkill": _sigkill,
    "exited": "{comm} (pid {pid})[ of {pod}] is dead",
    "checked": _checked,
    "lost": "{count} events of kind {of} were lost",
    "more": "... {count} more: {of}",
    "grew": _grew,
    "cache_activated": (
        "page cache had become active in {domain}: active {active_file:bytes}, inactive {inactive_file:bytes}"
    ),
}
