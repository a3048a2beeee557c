"""What the documents have from the code: the JSON Schema of an incident, from the types of its fields, and the table of
options.

    .venv/bin/python scripts/reference.py          writes docs/incident.schema.json and the table in configuration.md
"""

import inspect
import json
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from monitor.race.incident import FLAGS, VERDICTS, Incident
from monitor.settings.options import KEY, OPTIONS, OWN_KEY, Option

DOCS = Path(__file__).resolve().parents[1] / "docs"
SCHEMA, CONFIGURATION = DOCS / "incident.schema.json", DOCS / "configuration.md"
BEGIN, END = "<!-- made by scripts/reference.py -->\n", "<!-- end -->\n"
SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}
#: Keys with a closed list of words.
WORDS = {"verdict": {"enum": VERDICTS}, "flags": {"type": "array", "items": {"enum": FLAGS}}}


def schema() -> dict[str, Any]:
    found = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Incident", **of_class(Incident)}
    found["properties"].update(WORDS)
    return found


def of_class(cls: Any) -> dict[str, Any]:
    """An object with every field; required are those that each release has written."""
    hints = get_type_hints(cls)
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    about = " ".join((inspect.getdoc(cls) or "").split())
    shown = {f.name: of_type(hints[f.name]) for f in fields(cls)}
    return {"description": about, "type": "object", "properties": shown, "required": required}


def of_type(hint: Any) -> dict[str, Any]:
    if hint is Any:
        return {}
    if hint in SCALARS:
        return {"type": SCALARS[hint]}
    if is_dataclass(hint):
        return of_class(hint)
    origin, of = get_origin(hint), get_args(hint)
    if origin is UnionType:
        kinds = [{"type": "null"} if kind is NoneType else of_type(kind) for kind in of]
        return {"anyOf": kinds}
    if origin is tuple and of[1:] == (...,):
        return {"type": "array", "items": of_type(of[0])}
    if origin is tuple:
        return {"type": "array", "prefixItems": list(map(of_type, of)), "minItems": len(of), "maxItems": len(of)}
    if origin is dict:
        return {"type": "object", "additionalProperties": of_type(of[1])}
    raise TypeError(f"no schema for {hint}")


def table() -> str:
    """The options in the order of the help."""
    head = "| option, key of the file | KubeletConfiguration | default |\n|---|---|---|\n"
    return head + "".join(map(row, OPTIONS))


def row(option: Option) -> str:
    name = "the kubelet's file alone" if option.kind == KEY else f"`{option.name}`"
    only = {OWN_KEY: " (the file alone)"}.get(option.kind, "" if option.own_file or option.kind == KEY else " (no key)")
    key = f"`{option.kubelet_key}`" if option.kubelet_key else ""
    default = option.default.replace("|", "\\|")
    return f"| {name}{only} | {key} | {default} |\n"


def with_table(page: str) -> str:
    """The page with the table of today. Raises ValueError where the marks are missing."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(schema(), indent=1) + "\n")
    CONFIGURATION.write_text(with_table(CONFIGURATION.read_text()))
