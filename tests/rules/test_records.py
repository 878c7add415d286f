"""Records: every one says what, where, with which command; every README table has one."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORDS = sorted((ROOT / "tools" / "results").glob("*.json"))
# Of each run of a record that has its runs.
RUN = {
    "run",
    "settings",
    "commit",
    "machine",
    "inputs",
    "steps",
    "images",
    "ms_per_step",
    "trusted",
}
RUN |= {"final_error", "best_error", "pseudo_label_accuracy", "evaluations"}
RUN_SETTINGS = {"data", "labels", "algorithm", "seed", "threads", "steps"}


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_can_be_made_again_by_what_it_says(path):
    record = json.loads(path.read_text())
    assert record["what"] and isinstance(record["results"], list) and record["results"]
    place = record["environment"]
    for key in ("command", "commit", "date", "machine", "cores", "versions", "load_1m"):
        assert key in place, key
    assert place["versions"]["torch"] and place["commit"]
    made = [record.get("settings"), record.get("runs")]
    typed = f"{place['command']} {json.dumps(made)}"
    assert not re.search(r"(^|[\s=\"])/", typed), "a path of a machine"
    for result in record["results"]:
        assert {"name", "rate", "unit", "spread"} <= result.keys(), result.get("name")
    for run in record.get("runs", []):
        assert run.keys() >= RUN and run["commit"] and run["machine"], run.get("run")
        assert {**record["settings"], **run["settings"]}.keys() >= RUN_SETTINGS, run["run"]
        steps, minutes, errors = (run["evaluations"][key] for key in ("step", "minutes", "error"))
        assert len(steps) == len(minutes) == len(errors) and errors[-1] == run["final_error"]
        assert run["best_error"] in errors and steps == sorted(steps)


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
        assert tool("error_figure").draw(results) == figure.read_text(), figure.name
        pages = (page.read_text() for page in tool("readme_tables").PAGES)
        assert any(f"images/{figure.name}" in text for text in pages), figure.name
