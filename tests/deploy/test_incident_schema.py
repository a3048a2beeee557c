"""docs/incident.schema.json is what the fields give, and every kept incident keeps it."""

import json
import runpy
from typing import Any

import jsonschema
import pytest

from tests.commands import ROOT

SCHEMA = runpy.run_path(str(ROOT / "scripts/schema.py"))
KEPT = [json.loads(path.read_text()) for path in sorted((ROOT / "tests/data/replay").glob("*.json"))]
RACES = json.loads((ROOT / "docs/pictures/race.json").read_text())
INCIDENTS = [*(one for kept in KEPT for one in kept["incidents"]), *(RACES[r]["incident"] for r in ("enforce", "lost"))]


def test_the_schema_is_what_the_fields_give() -> None:
    written = json.loads(SCHEMA["WRITTEN"].read_text())
    assert written == json.loads(json.dumps(SCHEMA["schema"]())), "run .venv/bin/python scripts/schema.py"


def test_kept_incidents_keep_it_and_another_verdict_does_not() -> None:
    check = jsonschema.Draft202012Validator(SCHEMA["schema"]())
    for incident in INCIDENTS:
        check.validate(incident)
    wrong: Any = {**INCIDENTS[0], "verdict": "won", "oom_victims": [{"pid": 1}]}
    with pytest.raises(jsonschema.ValidationError):
        check.validate(wrong)
