"""Sweep files: irregular grids, mistakes in them, and those of the paper."""

import textwrap
from pathlib import Path

import pytest

from fastssl.config.resolve import load, parse_overrides, shipped_files
from fastssl.errors import ConfigError
from fastssl.sweep import grid

SHIPPED = list(shipped_files(sweeps=True))


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "grid.yaml"
    path.write_text(textwrap.dedent(text))
    return path


def test_irregular_tables_have_several_grids_excluded_and_named_cells(tmp_path):
    path = write(
        tmp_path,
        """
        grid:
          - {config: [digits], labels: [40, 100], algorithm: [fixmatch, flexmatch]}
          - {data: cifar10, algorithm: fixmatch, algo.threshold: [0.9, 0.95]}
        exclude:
          - {labels: 100, algorithm: [fixmatch]}
        cells:
          every label: {config: digits, algorithm: fullysupervised, labels: all, seed: [0, 1]}
        """,
    )
    _, cells = grid.read(path)
    assert [cell.name for cell in cells] == [
        "digits-40-fixmatch",
        "digits-40-flexmatch",
        "digits-100-flexmatch",
        "cifar10-fixmatch-threshold=0.9",
        "cifar10-fixmatch-threshold=0.95",
        "every_label-s0",
        "every_label-s1",
    ]
    assert cells[3].resolved.settings.threshold == 0.9
    assert cells[3].config == "cifar10"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("confg: digits\n", "unknown key confg (did you mean config?)"),
        ("config: digits\n", "holds no cell"),
        ("config: digits\ngrid: [3]\n", "grid is 3; expected: a valid dictionary"),
        ("grid: {seed: 0}\n", "no configuration is named"),
        ("config: digits\ngrid: {seed: [0, 0]}\n", "two cells named 's0'"),
        ("config: digits\ngrid: {labels: [40, 41], steps: [1, 0]}\n", "does not divide"),
        ("config: nothing\ngrid: {seed: 0}\n", "no configuration is named 'nothing'"),
        (
            "config: digits\ngrid: {algorithm: [fixmatch, supervised], algo.threshold: 0.9}\n",
            "supervi",
        ),
    ],
)
def test_mistakes_in_a_grid_are_reported_before_anything_runs(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match="\n  fix: ") as caught:
        grid.read(path)
    assert message in caught.value.what


def test_a_name_can_not_leave_the_folder(tmp_path):
    path = write(tmp_path, "config: digits\ncells: {../../x y: {seed: 0}, ..: {seed: 1}}\n")
    assert all(
        "/" not in cell.name and not cell.name.startswith(".") for cell in grid.read(path)[1]
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_every_cell_of_the_shipped_grids_has_a_configuration(name):
    _, cells = grid.read(grid.find_sweep(name))
    assert cells


def test_the_papers_grids_are_as_large_as_the_papers_tables():
    paper = [name.removeprefix("paper/") for name in SHIPPED if name.startswith("paper/")]
    sizes = {name: len(grid.read(grid.find_sweep(name))[1]) for name in paper}
    assert sizes.pop("cifar10_cpu") == 10
    assert sizes == {"ablations": 39, "imagenet": 2, "small": 5, "step_time": 6, "table1": 405}
    _, cells = grid.read(grid.find_sweep("table1"))
    full = [cell for cell in cells if cell.resolved.config.algorithm == "fullysupervised"]
    assert {cell.resolved.config.data for cell in full} == {"cifar10", "cifar100", "svhn"}


def test_the_fast_grids_hold_every_cell_once_with_its_seeds():
    cells = [cell for name in ("cifar10_grid", "cifar10_more") for cell in read_fast(name)]
    found, model = {}, load("fast/cifar10").config.model
    for cell in cells:
        config = cell.resolved.config
        assert (config.model, config.threads) == (model, 1)
        found.setdefault((config.labels, config.algorithm), []).append(config.seed)
    few = ["supervised", "fixmatch", "flexmatch", "softmatch", "uda", "freematch", "pseudolabel"]
    wanted = [(labels, name) for labels in (40, 250) for name in few]
    wanted += [(4000, name) for name in few[:3]]
    assert found == {cell: [0, 1, 2] for cell in wanted}
    # The first six cells compare three algorithms with one seed: a sweep that is stopped is of use.
    assert {cell.resolved.config.seed for cell in cells[:6]} == {0}


def read_fast(name):
    return grid.read(grid.find_sweep(f"fast/{name}"))[1]


def test_a_path_is_not_taken_for_the_shipped_sweep_of_that_name():
    with pytest.raises(ConfigError, match="no sweep is named"):
        grid.find_sweep("elsewhere/table1.yaml")


def test_a_sweep_that_is_not_there_is_answered_with_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean table1"):
        grid.find_sweep("tabel1")


@pytest.mark.parametrize(
    "value",
    ["123", "1e5", "true", "null", "", "off", "[x", "a: b", " x ", "é😀", "~", 5, True, ["1", 2]],
)
def test_a_process_reads_a_value_as_the_sweep_does(value):
    cell = grid.Cell("a", "digits", {"pretrained": value}, None)
    assert parse_overrides(cell.overrides()) == {"pretrained": value}


def test_the_name_of_a_sweep_can_not_leave_the_folder_of_runs(tmp_path):
    path = write(tmp_path, "name: ../../x\nconfig: digits\ngrid: {seed: 0}\n")
    assert "/" not in grid.read(path)[0]
