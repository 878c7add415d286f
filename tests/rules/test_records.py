"""Records: every one says what, where, with which command; every README table has one."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORDS = sorted((ROOT / "tools" / "results").glob("*.json"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_can_be_made_again_by_what_it_says(path):
    record = json.loads(path.read_text())
    assert record["what"] and isinstance(record["results"], list) and record["results"]
    place = record["environment"]
    for key in ("command", "commit", "date", "machine", "cores", "versions", "load_1m"):
        assert key in place, key
    assert place["versions"]["torch"] and place["commit"]
    typed = f"{place['command']} {json.dumps(record.get('settings'))}"
    assert not re.search(r"(^|[\s=\"])/", typed), "a path of a machine"
    for result in record["results"]:
        assert {"name", "rate", "unit", "spread"} <= result.keys(), result.get("name")


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_what_the_records_say():
    module = tool("readme_tables")
    names = []
    for page in module.PAGES:
        text = page.read_text()
        assert module.filled(text) == text, "run: python tools/readme_tables.py"
        names += re.findall(r"<!-- table: ([\w-]+) -->", text)
    assert sorted(names) == sorted(module.TABLES)


def test_the_reference_pages_are_generated_from_the_code():
    module = tool("readme_tables")
    for name, page in module.REFERENCE.items():
        assert (ROOT / "docs" / name).read_text() == page(), "run: python tools/readme_tables.py"


def test_figures_are_drawn_from_their_records():
    drawn = sorted((ROOT / "docs" / "images").glob("*.svg"))
    assert drawn
    for figure in drawn:
        record = ROOT / "tools" / "results" / f"{figure.stem}.json"
        results = json.loads(record.read_text())["results"]
        assert tool("sweep_record").draw(results) == figure.read_text(), figure.name
        assert f"images/{figure.name}" in (ROOT / "docs" / "results.md").read_text()
