from pathlib import Path

import pytest

from fastssl import report
from fastssl.algorithms import ALGORITHMS
from fastssl.report import published
from pipelines.datasets import DATASETS

METRICS = ("best_error", "median_error", "top5_error", "precision", "recall", "f1", "auc")


def entries(metric):
    for table in published.paper()[metric]:
        for algorithm, row in table["values"].items():
            for column, value in row.items():
                yield table, algorithm, column, value


@pytest.mark.parametrize("metric", METRICS)
def test_every_published_result_belongs_to_something_we_can_train(metric):
    for table, algorithm, column, value in entries(metric):
        data, _, labels = column.partition("-")
        assert algorithm in ALGORITHMS
        assert data in DATASETS
        assert labels.isdigit() or algorithm == "fullysupervised"
        assert table["table"] and table["what"]
        mean, std = value if isinstance(value, list) else (value, 0)
        assert 0 <= mean <= 100 and 0 <= std < 10


def test_table_1_and_the_appendix_are_whole():
    assert sum(1 for _ in entries("best_error")) == 136
    assert sum(1 for _ in entries("median_error")) == 66
    assert sum(1 for _ in entries("f1")) == 12


def test_a_published_result_is_found_by_its_cell():
    found = published.find("best_error", "flexmatch", "cifar10", 40)
    assert (found.mean, found.std, found.where) == (4.97, 0.06, "table 1")
    assert published.find("best_error", "vat", "stl10", 250).where == "table 10"
    assert published.find("best_error", "fixmatch", "svhn", 250).mean == 2.02
    assert published.find("best_error", "flexpl", "svhn", 250) is None
    assert published.find("best_error", "fullysupervised", "cifar100", "all").mean == 19.30
    assert published.find("best_error", "fullysupervised", "stl10", "all") is None
    assert published.find("top5_error", "flexmatch", "imagenet", 100000).std is None
    assert published.find("median_error", "flexmatch", "svhn", 40).mean == 20.81


def test_a_setting_that_is_not_the_default_has_its_own_result_or_none():
    balance = {"algo.class_balance": 1.0}
    assert published.find("best_error", "fixmatch", "cifar10", 40, balance).mean == 7.16
    other = {"algo.threshold": 0.9}
    assert published.find("best_error", "fixmatch", "cifar10", 40, other) is None


def test_claims_and_classes():
    assert published.claim("to_fixmatch", "flexmatch", "cifar100", 400) == 50_000
    assert published.claim("relative_reduction", "flexmatch", "stl10", 40) == 18.96
    assert published.class_accuracy("fixmatch", "cifar10", 40)[2] == 0.697
    # the reductions follow from table 1
    fix = published.find("best_error", "fixmatch", "cifar100", 400).mean
    flex = published.find("best_error", "flexmatch", "cifar100", 400).mean
    assert round(100 * (fix - flex) / fix, 2) == published.claim(
        "relative_reduction", "flexmatch", "cifar100", 400
    )


def test_every_claim_is_shown_beside_our_results():
    folder = Path(report.__file__).parent
    text = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    unread = [name for name in published.paper()["claims"] if f'"{name}"' not in text]
    assert unread == []
