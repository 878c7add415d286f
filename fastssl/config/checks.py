"""Checks of single keys of a configuration: the values that a type alone does not exclude.

A check raises ValueError with a sentence, as pydantic expects; `describe` makes a message of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ValidationError, ValidationInfo, field_validator

from fastssl import models, plugins
from fastssl.algorithms import Settings, find_algorithm
from fastssl.config.messages import brief, describe, nearest
from fastssl.errors import UserError
from pipelines.datasets import DATASETS
from pipelines.readers import READERS


class CheckedKeys(BaseModel):
    """The checks; `RunConfig` declares the keys."""

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_other_types(cls, value: Any, info: ValidationInfo) -> Any:
        # pydantic takes bytes (!!binary in YAML) for text. A file with code named in bytes would
        # not be recognized as one, and would run without being trusted.
        if isinstance(value, bytes | bytearray):
            raise ValueError(f"{info.field_name} is binary; expected another value")
        # Python takes True for 1: steps=true would train one step.
        expected = str(cls.model_fields[info.field_name or ""].annotation)
        if value is False and "'off'" in expected:  # YAML reads off as False
            return "off"
        if value == "none" and ("None" in expected or "Optional" in expected):
            return None  # which the manual calls none, and YAML null
        if isinstance(value, bool) and "bool" not in expected:
            raise ValueError(f"{info.field_name} is {str(value).lower()}; expected another value")
        return value

    @field_validator("data", check_fields=False)
    @classmethod
    def _data_exists(cls, name: str) -> str:
        names = [*DATASETS, "own"]
        with _user_errors():
            if name in names or plugins.is_plugin("data", name):
                return name
        raise ValueError(f"no dataset is named {brief(name)}{nearest(name, names)}")

    @field_validator("labels", mode="before", check_fields=False)
    @classmethod
    def _labels_count(cls, value: Any, info: ValidationInfo) -> Any:
        text = str(value) if isinstance(value, int | str) else ""
        found = re.fullmatch(r"0*([1-9]\d{0,9})(/class)?", text)
        if not found and text != "all":
            raise ValueError(
                f"labels is {brief(value)}; expected at least 1, N/class such as 5/class, or all"
            )
        dataset = str(info.data.get("data"))
        if found and found[2] and dataset in DATASETS:
            return int(found[1]) * DATASETS[dataset].classes
        return int(found[1]) if found and not found[2] else text

    @field_validator("model", check_fields=False)
    @classmethod
    def _model_exists(cls, name: str) -> str:
        with _user_errors():
            models.check(name)
        return name

    @field_validator("reader", check_fields=False)
    @classmethod
    def _reader_exists(cls, name: str) -> str:
        names = ["auto", *READERS]
        if name not in names:
            raise ValueError(f"reader is {brief(name)}; expected one of: {', '.join(names)}")
        return name

    @field_validator("algorithm", mode="before", check_fields=False)
    @classmethod
    def _algorithm_exists(cls, name: Any) -> Any:
        if not isinstance(name, str):
            raise ValueError(f"no algorithm is named {brief(name)}; type algorithm=flexmatch")
        with _user_errors():
            find_algorithm(name)
        return name

    @field_validator("algo", mode="before", check_fields=False)
    @classmethod
    def _check_the_settings(cls, value: Any, info: ValidationInfo) -> Settings:
        """Validate `algo` by the settings model of the chosen algorithm."""
        if "algorithm" not in info.data:
            return Settings()  # an unknown algorithm is a problem of its own
        model = find_algorithm(info.data["algorithm"]).config
        if isinstance(value, Settings):
            value = value.model_dump()
        if not isinstance(value, dict):
            raise ValueError(f"algo is {brief(value)}; expected keys such as algo.threshold")
        try:
            return model.model_validate(value)
        except ValidationError as error:
            raise ValueError(describe(error, list(model.model_fields), "algo.")) from error


@contextmanager
def _user_errors() -> Iterator[None]:
    """Raise a UserError as the ValueError that pydantic expects of a validator."""
    try:
        yield
    except UserError as error:
        raise ValueError(error) from error
