import math

import pytest
from pydantic import ValidationError

from fastssl.report.records import MetricsLine, Summary


@pytest.mark.parametrize("value", [math.nan, math.inf, "5", [5], True, None, 10**400])
def test_a_value_that_is_no_finite_number_reads_as_missing(value):
    line = MetricsLine.model_validate({"step": 1, "error": value, "class_accuracy": [0.5, value]})
    assert line.error is None and line.accuracy is None
    assert line.class_accuracy == [0.5, None]
    assert Summary.model_validate({"best_error": value}).best_error is None


def test_a_list_or_dict_of_another_type_reads_as_empty():
    line = MetricsLine.model_validate({"step": 1, "class_accuracy": 3, "tables": 4})
    assert (line.class_accuracy, line.thresholds, line.counts) == ([], [], [])


def test_names_with_a_slash_are_read():
    content = {"step": 1, "pseudo/accuracy": 0.5, "speed/images_per_s": 7, "speed/data_wait": 0}
    line = MetricsLine.model_validate(content)
    assert (line.pseudo_accuracy, line.images_per_s, line.data_wait) == (0.5, 7.0, 0.0)


@pytest.mark.parametrize("table", [[[1, 2], [3]], [[1, 2]], [[1, "2"], [3, 4]], 3])
def test_only_a_square_matrix_is_a_confusion_matrix(table):
    assert MetricsLine.model_validate({"step": 1, "confusion": table}).confusion is None


@pytest.mark.parametrize("step", [-1, True, 1.5, 2**53 + 1, "1", None])
def test_a_line_without_a_valid_step_is_refused(step):
    with pytest.raises(ValidationError):
        MetricsLine.model_validate({"step": step, "error": 5.0})
