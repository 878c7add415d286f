"""The description of the machine names the commit of a checkout."""

import re
from pathlib import Path

import pytest

from fastssl.tracking import environment

CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(not (CHECKOUT / ".git").exists(), reason="not a checkout")
def test_the_commit_of_a_checkout_is_named():
    assert re.fullmatch(r"[0-9a-f]{12}\+?", environment.commit())


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
    monkeypatch.setattr(environment, "PACKAGES", ("numpy", "no-such-package"))
    assert list(environment.versions()) == ["numpy"]
