"""The steps of an incident's timeline as sentences.

Names of processes are whatever a process called itself, so nothing unprintable gets through to the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from monitor.cli.output import format_bytes

Json = Mapping[str, Any]

#: Fields of a step that are bytes although their name does not say so.
_SIZES = frozenset({"usage", "working_set", "available", "quantity", "rss", "limit", "freed"})


def clean(text: object) -> str:
    """The text with everything unprintable as an escape: `\\x1b` cannot move anybody's cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def describe(step: Json) -> str:
    """What happened in a step; a kind that is not known as its name and its fields."""
    text = _TEXTS.get(step["what"])
    if text is not None:
        try:
            return text(step)
        except KeyError:
            pass  # of another version: by its fields, then
    fields = [key for key, value in step.items() if key not in ("t_ms", "what") and value is not None]
    rest = [f"{clean(key)} {_value(key, step[key])}" for key in fields]
    return clean(step["what"]).replace("_", " ") + (": " + ", ".join(rest) if rest else "")


def _value(key: str, value: object) -> str:
    is_size = key.endswith("bytes") or key in _SIZES
    return format_bytes(value) if is_size and type(value) is int else clean(value)


def process(who: Json) -> str:
    """A process as `name (pid 12)`."""
    return f"{clean(who['comm'])} (pid {who['pid']})"


def _in(memcg: str) -> str:
    return "" if memcg == "global" else f" in {clean(memcg)}"


def _of(step: Json) -> str:
    return f" of {clean(step['pod'])}" if step.get("pod") else ""


def _crossed(step: Json) -> str:
    held = f"usage {format_bytes(step['usage'])}, working set {format_bytes(step['working_set'])}"
    threshold = f"{clean(step['signal'])} below {format_bytes(step['quantity'])} in {clean(step['domain'])}"
    return f"{clean(step['kind'])} threshold crossed: {threshold} ({held})"


def _held(step: Json) -> str:
    have = "" if step.get("pods") is None else f", pods have {format_bytes(step['pods'])}"
    outside = "" if step.get("outside") is None else f", outside {format_bytes(step['outside'])}"
    kubelet = step.get("kubelet_would_evict")
    instead = f"; a kubelet would evict {clean(kubelet)}" if kubelet else ""
    return f"evictions are held: they would not help ({clean(step['reason'])}{have}{outside}){instead}"


def _decided(step: Json) -> str:
    verb = "would evict" if step["observed"] else "decides to evict"
    where = ", in the kernel" if step["trigger"] == "kernel" else ""
    held = "" if step.get("pod_working_set") is None else f", working set {format_bytes(step['pod_working_set'])}"
    why = f"(rank {step['rank']}, grace {step['grace_s']:g} s{held})"
    return f"{clean(step['by'])} {verb} {clean(step['pod'])} {why}{where}"


def _signalled(step: Json) -> str:
    name = {9: "SIGKILL", 15: "SIGTERM"}.get(step["signal"], f"signal {step['signal']}")
    return f"{name} sent to {clean(step['pod'])}"


def _gone(step: Json) -> str:
    freed = "" if step.get("freed") is None else f"; it gave back {format_bytes(step['freed'])}"
    return f"nobody is left of {clean(step['pod'])}{freed}"


def _oom(step: Json) -> str:
    limit = "the machine is out of memory" if step["limit_of"] == "global" else f"limit of {clean(step['limit_of'])}"
    if step.get("usage") is not None:
        limit += f" (usage {format_bytes(step['usage'])} of {format_bytes(step['limit'])})"
    return (
        f"OOM KILLER picks {process(step)}{_of(step)}, rss {format_bytes(step['rss'])}, oom_score_adj "
        f"{step['oom_score_adj']}: {limit}; called by {clean(step['invoker'])} (pid {step['invoker_pid']})"
    )


def _sigkill(step: Json) -> str:
    sender = "the kernel" if step["from"] == "kernel" else clean(step["from"])
    return f"SIGKILL to {process(step)}{_of(step)} from {'outrace' if step['ours'] else sender}"


def _grew(step: Json) -> str:
    grower = clean(step.get("pod") or step["domain"])
    return f"{grower} had grown by {format_bytes(step['bytes'])} in {step['in_s']:g} s"


def _activated(step: Json) -> str:
    shift = f"active {format_bytes(step['active_file'])}, inactive {format_bytes(step['inactive_file'])}"
    return f"page cache had become active in {clean(step['domain'])}: {shift}"


#: One for each kind of step that monitor/race/timeline.py makes.
_TEXTS: dict[str, Callable[[Json], str]] = {
    "crossed": _crossed,
    "seen": lambda step: f"{clean(step['by'])} sees it",
    "held": _held,
    "not_held": lambda _: "evictions are not held any more",
    "decided": _decided,
    "signalled": _signalled,
    "gone": _gone,
    "clear": lambda step: f"{clean(step['kind'])} threshold clear again ({clean(step['signal'])})",
    "reclaim": lambda step: f"the kernel begins to reclaim{_in(step['memcg'])}",
    "oom": _oom,
    "exiting": lambda step: f"the OOM killer marks {process(step)}{_of(step)}, which is dying already",
    "sigkill": _sigkill,
    "exited": lambda step: f"{process(step)}{_of(step)} is dead",
    "checked": lambda step: (
        f"{clean(step['source'])} {'confirms it' if step['agrees'] else 'DISAGREES'}: {clean(step['detail'])}"
    ),
    "lost": lambda step: f"{step['count']} events of kind {clean(step['of'])} were lost",
    "more": lambda step: f"... {step['count']} more: {clean(step['of'])}",
    "grew": _grew,
    "cache_activated": _activated,
}
