"""The pictures of the documents are what the scripts draw, README's from the kept record of two races."""

import json
import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.commands import ROOT

PICTURE = runpy.run_path(str(ROOT / "scripts" / "picture.py"))
DRAWN = runpy.run_path(str(ROOT / "scripts" / "drawings.py"))["DRAWN"]
RECORD = json.loads(PICTURE["RECORD"].read_text())


def test_it_is_what_the_record_gives() -> None:
    assert PICTURE["PICTURE"].read_text() == PICTURE["draw"](RECORD), "run .venv/bin/python scripts/picture.py"


@pytest.mark.parametrize("path", DRAWN)
def test_the_drawings_are_what_is_drawn(path: Path) -> None:
    assert path.read_text() == DRAWN[path](), "run .venv/bin/python -m scripts.drawings"


def test_it_says_the_figures_of_the_incidents_and_needs_no_other_file() -> None:
    source = PICTURE["PICTURE"].read_text()
    words = [element.text for element in ElementTree.fromstring(source).iter() if element.tag.endswith("text")]
    [oom] = [step for step in RECORD["observe"]["incident"]["steps"] if step["what"] == "oom"]
    assert f"{oom['t_ms']:.0f} ms after the threshold was crossed" in words
    assert re.findall(r"href|url\(|<style|<script", source) == []
