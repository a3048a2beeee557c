"""What scripts/reference.py writes into docs/ is what the code says, and kept incidents keep their schema."""

import json
import runpy
from typing import Any

import jsonschema
import pytest

from tests.commands import ROOT

REFERENCE = runpy.run_path(str(ROOT / "scripts/reference.py"))
KEPT = [json.loads(path.read_text()) for path in sorted((ROOT / "tests/data/replay").glob("*.json"))]
RACES = json.loads((ROOT / "docs/pictures/race.json").read_text())
INCIDENTS = [*(one for kept in KEPT for one in kept["incidents"]), *(RACES[r]["incident"] for r in ("enforce", "lost"))]


def test_the_documents_have_what_the_code_says() -> None:
    written, page = json.loads(REFERENCE["SCHEMA"].read_text()), REFERENCE["CONFIGURATION"].read_text()
    assert written == json.loads(json.dumps(REFERENCE["schema"]())), "run make pictures"
    assert page == REFERENCE["with_table"](page), "run make pictures"


def test_kept_incidents_keep_it_and_another_verdict_does_not() -> None:
    check = jsonschema.Draft202012Validator(REFERENCE["schema"]())
    for incident in INCIDENTS:
        check.validate(incident)
    wrong: Any = {**INCIDENTS[0], "verdict": "won", "oom_victims": [{"pid": 1}]}
    with pytest.raises(jsonschema.ValidationError):
        check.validate(wrong)
