"""Names that could do harm on a terminal or in a spreadsheet do none."""

import csv
import io

import pytest

from pipelines.text import for_csv, for_terminal, from_csv

FORMULAS = [
    '=cmd|"/c calc"!A1',
    "+A1",
    "-A1+2",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    " =1",
    "\uff1d1+1",
    "-",
    "@",
]


@pytest.mark.parametrize(
    "name",
    ["\x1b[2J", "a\x07", "\x9b31m", "\x7f", "a\nb", "a\rb", "\u202egpj.exe", "\u2066", "\udcff"],
)
def test_what_a_terminal_would_obey_is_shown_as_an_escape(name: str) -> None:
    shown = for_terminal(name)
    assert shown.isprintable() and "\\" in shown
    shown.encode()  # a stray byte would fail here


def test_names_in_any_language_stay_as_they_are() -> None:
    for name in ("rose", "Löwenzahn", "蒲公英", "नमस्ते", "🌼 daisy", "C:\\photos"):
        assert for_terminal(name) == for_csv(name) == name
    assert for_terminal("\x1b[0m \udcff") == "\\x1b[0m \\xff"


@pytest.mark.parametrize("name", FORMULAS)
def test_no_cell_begins_like_a_formula(name: str) -> None:
    assert for_csv(name) == "'" + name


@pytest.mark.parametrize("name", [*FORMULAS, "'=1", "''=1", "'quoted'", "-1", "+1.5", "a=b", ""])
def test_cells_are_read_back_as_they_were(name: str) -> None:
    file = io.StringIO(newline="")
    csv.writer(file).writerow([for_csv(name)])
    (row,) = csv.reader(io.StringIO(file.getvalue(), newline=""))
    assert from_csv(row[0] if row else "") == name


def test_numbers_and_common_names_are_not_changed() -> None:
    for name in ("-1", "+1", "-0.5", "a-b", "'tis", "rose", ""):
        assert for_csv(name) == name
