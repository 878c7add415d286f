"""Golden losses: exact on the processor and torch they were made on, to 1e-4 elsewhere."""

import pytest

from fastssl.algorithms import ALGORITHMS
from tests.golden.losses import FOLDER, here, losses


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_losses_are_the_golden_ones(name, data):
    file = FOLDER / f"{name}.txt"
    assert file.exists(), f'make it with: python tools/golden.py "new algorithm" {name}'
    heads, golden = [], []
    for line in file.read_text().splitlines():
        if line.startswith("#"):
            heads.append(line.lstrip("# "))
        else:
            golden.append(float.fromhex(line.split()[1]))
    found = losses(name)
    if here() in heads:
        assert found == golden
    else:
        assert found == pytest.approx(golden, rel=1e-4)


def test_no_golden_file_without_an_algorithm():
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(ALGORITHMS)
