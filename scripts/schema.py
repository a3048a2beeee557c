"""The JSON Schema of an incident (`outrace incidents show ID -o json`, a webhook's body), from the types of its fields.

    .venv/bin/python scripts/schema.py             writes docs/incident.schema.json
"""

import inspect
import json
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from monitor.race.incident import FLAGS, VERDICTS, Incident

WRITTEN = Path(__file__).resolve().parents[1] / "docs/incident.schema.json"
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


if __name__ == "__main__":
    WRITTEN.write_text(json.dumps(schema(), indent=1) + "\n")
