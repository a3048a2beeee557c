"""tests/data/seeds.toml: every rule of the source documents has its code and its test, or plainly has none."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests/data/seeds.toml"
PLAINLY = ("not built", "not ours")
#: Flags and signals that the documents name.
NAMED = (
    *("--eviction-hard", "--eviction-soft", "--eviction-soft-grace-period", "--eviction-max-pod-grace-period"),
    *("--eviction-minimum-reclaim", "eviction-pressure-transition-period", "--kernel-memcg-notification"),
    *("--kube-reserved", "--system-reserved", "--image-gc-high-threshold", "--image-gc-low-threshold"),
    *("--low-diskspace-threshold-mb", "--outofdisk-transition-frequency", "--maximum-dead-containers"),
    *("--maximum-dead-containers-per-container", "--minimum-container-ttl-duration", "housekeeping-interval"),
    *("--node-status-update-frequency", "--root-dir", "--terminated-pod-gc-threshold", "memory.available"),
    *("nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree", "pid.available"),
)


def wrong(rule: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a rule of the table."""
    where, tests = rule.get("where"), rule.get("tests", [])
    if where in PLAINLY:
        if tests or not rule.get("differs"):
            yield f"{where}, but no reason, or a test"
        return
    if not where or not tests:
        yield "no code, or no test"
        return
    for place in where:
        path, colon, name = place.partition(": ")
        last = re.escape(name.rpartition(".")[2])
        pattern = rf"\b{last}\(" if path.endswith(".c") else rf"^\s*(?:def|class) {last}\b|^{last}\b[^=\n]*="
        if not colon or not re.search(pattern, text_of(path), re.M):
            yield f"there is no {place}"
    for place in tests:
        path, colon, name = place.partition("::")
        if not colon or not re.search(rf"^def {name}\(", text_of(path), re.M):
            yield f"there is no {place}"


def text_of(path: str) -> str:
    return (ROOT / path).read_text() if (ROOT / path).is_file() else ""


def complaints() -> Iterator[str]:
    text, file = TABLE.read_text(), TABLE.relative_to(ROOT)
    rules = tomllib.loads(text)["rule"]
    for rule in rules:
        yield from (f"{file}: {rule['rule'][:60]}: {problem}" for problem in wrong(rule))
    known = {(rule["document"], rule["rule"]) for rule in rules}
    if len({document for document, _ in known}) != 5 or not len(rules) == len(known) >= 90:
        yield f"{file}: five documents, and 90 rules of which none is there twice"
    yield from (f"{file}: {name} is missing" for name in NAMED if name not in text)
