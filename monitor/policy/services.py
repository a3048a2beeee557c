"""A service, session or container as a Pod: what its operator wrote about it, and what that makes of it.

That a unit has no priority is known, and means 0; one whose labels or processes could not be read is never evicted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from monitor.policy.errors import PolicyError
from monitor.policy.eviction_pass import DEFAULT_POD_GRACE_S
from monitor.policy.gosyntax import parse_duration
from monitor.policy.pods import Container, Pod
from monitor.policy.qos import BEST_EFFORT, BURSTABLE, GUARANTEED, LEAST_PRIORITY, MOST_PRIORITY
from monitor.policy.quantity import Quantity

#: Labels of a container.
PRIORITY, REQUEST, GRACE, NEVER = LABELS = (
    "outrace/priority", "outrace/request", "outrace/grace", "outrace/never"
)  # fmt: skip
#: The longest grace, in seconds.
MOST_GRACE_S = 24 * 60 * 60
#: OOMScoreAdjust= of "never": the kernel spares it (OOM_SCORE_ADJ_MIN).
SPARED_SCORE = -1000
#: No operator's wish: systemd starts a user's manager with 100, and that its units with 100 more (systemd.exec(5)).
USER_DEFAULT_SCORE = 200
#: Characters. Durations are parsed in quadratic time (800 kB took 4.3 s), and the author of an image writes its labels.
_LONGEST_DURATION = 64
_WHOLE = re.compile(r"[+-]?\d{1,12}")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one unit or container; sizes are bytes."""

    uid: str
    namespace: str
    name: str
    request: int = 0  # MemoryMin= or MemoryLow=, the larger; a container's reservation
    limit: int | None = None
    score: int | None = None  # the lowest oom_score_adj of its processes; None: not known yet
    preference: str = ""  # of ManagedOOMPreference=: avoid, omit
    labels: Mapping[str, str] | None = field(default_factory=dict)  # None: not known
    aliases: tuple[str, ...] = ()  # other names that a pattern may have; one with a "/" has its namespace already
    user: bool = False  # a user's own manager made it
    protected: str = ""  # why it is never evicted unless its operator says otherwise
    vital: str = ""  # why it is never evicted, whatever anybody says


def service_pod(facts: Facts, rules: Mapping[str, Mapping[str, Any]]) -> Pod:
    """The pod, with the reasons in `Pod.written`. ``rules``: pattern -> priority, request (bytes), grace (seconds),
    never; the first that has namespace/name counts.
    """
    pattern, rule = _rule(facts, rules)
    given = partial(_given, facts, pattern, rule)
    priority, why_priority = given("priority", PRIORITY) or _priority(facts)
    none = "no MemoryMin=, MemoryLow=, reservation or label"
    kept = "MemoryMin=, MemoryLow= or the container's reservation" if facts.request else none
    request, why_request = given("request", REQUEST) or (facts.request, kept)
    # TimeoutStopSec= is in no file that the machine keeps of a unit.
    grace_s, why_grace = given("grace", GRACE) or (DEFAULT_POD_GRACE_S, "as for a pod that names none")
    quality, why_class = _quality(request, facts.limit)
    amounts = {"memory": Quantity.of_bytes(request)} if request else {}
    limits = {} if facts.limit is None else {"memory": Quantity.of_bytes(facts.limit)}
    never = _never(facts, pattern, rule)
    return Pod(
        uid=facts.uid,
        namespace=facts.namespace,
        name=facts.name,
        labels=facts.labels or {},
        containers=(Container(facts.name, amounts, limits),),
        priority=priority,
        qos_class_status=quality,
        grace_period_s=grace_s,
        taken_critical=never,
        written={
            "priority": f"{priority}: {why_priority}",
            "request": why_request,
            "class": why_class,
            "grace": f"{grace_s} s: {why_grace}",
            "oom_score_adj": "not known yet" if facts.score is None else f"{facts.score}, the lowest of its processes",
        },
    )


def _rule(facts: Facts, rules: Mapping[str, Mapping[str, Any]]) -> tuple[str, Mapping[str, Any]]:
    own = (facts.name, *facts.aliases)
    names = [name if "/" in name else f"{facts.namespace}/{name}" for name in own]
    if not facts.user:  # users choose the names of their units: `nginx.service` is the machine's
        names += own
    found = ((pattern, rule) for pattern, rule in rules.items() if any(fnmatchcase(name, pattern) for name in names))
    return next(found, ("", {}))


def _given(facts: Facts, pattern: str, rule: Mapping[str, Any], key: str, label: str) -> tuple[int, str] | None:
    """A number by the table or by a label, and by which; None where neither has one."""
    if key in rule:
        return int(rule[key]), f"services: {pattern}"
    text = (facts.labels or {}).get(label)
    number = None if text is None else _read(label, text)
    return None if number is None else (number, f"label {label}")


def _priority(facts: Facts) -> tuple[int, str]:
    if facts.preference == "avoid":
        return MOST_PRIORITY, "ManagedOOMPreference=avoid: behind all others"
    score = facts.score or 0
    if facts.user and score > 0:
        score = max(0, score - USER_DEFAULT_SCORE)
    if score not in (0, SPARED_SCORE):
        return -score, f"oom_score_adj {facts.score} (OOMScoreAdjust=), turned round"
    return 0, "nothing that its operator wrote says otherwise"


def _quality(request: int, limit: int | None) -> tuple[str, str]:
    """Guaranteed: as much is kept for it as it may have. Of memory alone: operators set no limit of CPU for that."""
    if request and request == limit:
        return GUARANTEED, "its memory request is its limit"
    if request:
        return BURSTABLE, "it has a memory request"
    if limit is not None:
        return BURSTABLE, "it has a memory limit"
    return BEST_EFFORT, "it has neither a memory request nor a limit"


def _never(facts: Facts, pattern: str, rule: Mapping[str, Any]) -> str:
    """Why it is never evicted; "" if it may be."""
    if facts.vital:
        return facts.vital
    if "never" in rule:
        return f"services: {pattern}: never" if rule["never"] else ""
    if facts.protected:
        return facts.protected
    if facts.labels is None:
        return "its labels, which may forbid it, are not known"
    for name in LABELS:
        value = facts.labels.get(name)
        if value is not None and _read(name, value) is None:  # its author meant something that is not known
            return f"its label {name}={value[:40]!r} {_WRONG[name]}"
    if facts.labels.get(NEVER) == "true":
        return f"label {NEVER}"
    if facts.preference == "omit":
        return "ManagedOOMPreference=omit"
    if facts.score is None:
        return "it is being started: its oom_score_adj is not known yet"
    return "OOMScoreAdjust=-1000: a process of it has that" if facts.score == SPARED_SCORE else ""


#: Label -> what is wrong with a value that cannot be read.
_WRONG = {
    PRIORITY: f"is no whole number up to {MOST_PRIORITY}",
    REQUEST: "is no quantity such as 200Mi",
    GRACE: "is no duration of whole seconds up to 24h such as 90s",
    NEVER: "is not true or false",
}


def _read(name: str, value: str) -> int | None:
    """The value of a label: a priority, bytes, seconds, whether never; None if it cannot be read."""
    if name == NEVER:
        return {"true": True, "false": False}.get(value)
    if name == PRIORITY:
        return int(value) if _WHOLE.fullmatch(value) and LEAST_PRIORITY <= int(value) <= MOST_PRIORITY else None
    try:
        if name == REQUEST:
            amount = Quantity.parse(value.strip())
            return amount.value if 0 <= amount.nanos < 10**9 << 62 else None
        if len(value) > _LONGEST_DURATION:
            return None
        seconds, rest = divmod(parse_duration(value.strip()), 10**9)
    except PolicyError:
        return None
    return seconds if not rest and 0 < seconds <= MOST_GRACE_S else None
