import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[3] / "tools" / "paper_benchmark.py"


@pytest.fixture
def tool(monkeypatch):
    """The tool, with the verbs it runs noted instead of run."""
    spec = importlib.util.spec_from_file_location("paper_benchmark", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.said, module.codes = [], {}

    def fastssl(*words):
        module.said.append(words)
        return module.codes.get(words[0], 0)

    monkeypatch.setattr(module, "fastssl", fastssl)
    return module


def test_from_raw_data_to_report(tool, tmp_path, monkeypatch):
    monkeypatch.setenv("FASTSSL_DATA", str(tmp_path))
    (tmp_path / "svhn").mkdir()
    (tmp_path / "svhn" / "dataset.json").write_text("{}")
    words = ["table1", "--root", "raw", "--out", "o", "--jobs", "3", "--only", "40"]
    assert tool.main(words) == 0
    converted = [line[1] for line in tool.said if line[0] == "convert"]
    assert converted == ["cifar10", "cifar100", "stl10"]
    assert tool.said[0] == ("convert", "cifar10", str(tmp_path / "cifar10"), "--root", "raw")
    assert tool.said[-2:] == [
        ("sweep", "table1", "--out", "o", "--jobs", "3", "--only", "40"),
        ("report", "o", "--out", "o/report.html"),
    ]


def test_a_failed_cell_still_gets_a_report_and_an_interruption_does_not(
    tool, tmp_path, monkeypatch
):
    monkeypatch.setenv("FASTSSL_DATA", str(tmp_path))
    tool.codes = {"sweep": 4}
    assert tool.main(["small"]) == 4
    assert tool.said[-1][0] == "report"
    tool.codes = {"sweep": 143}
    assert tool.main(["small"]) == 143
    assert tool.said[-1][0] == "sweep"
    tool.codes = {"convert": 3}
    assert tool.main(["small"]) == 3
    assert tool.said[-1][0] == "convert"
    assert tool.main(["smal"]) == 2


def test_only_the_data_of_the_chosen_cells_are_converted(tool, tmp_path, monkeypatch):
    monkeypatch.setenv("FASTSSL_DATA", str(tmp_path))
    assert tool.main(["table1", "--only", "stl10-*"]) == 0
    assert [line[1] for line in tool.said if line[0] == "convert"] == ["stl10"]
    tool.said.clear()
    assert tool.main(["table1", "--only", "nothing"]) == 2
    assert tool.said == []
