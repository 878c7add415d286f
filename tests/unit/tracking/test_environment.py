"""The description of the machine names the commit of a checkout."""

import shutil
import subprocess
from pathlib import Path

import pytest

from fastssl.tracking import environment

CHECKOUT = Path(__file__).resolve().parents[3]
TEXT = {"capture_output": True, "text": True}


def test_the_commit_of_a_checkout_is_named():
    # git reads no checkout of another user.
    command = ["git", "-C", str(CHECKOUT), "rev-parse", "HEAD"]
    if not shutil.which("git") or (done := subprocess.run(command, **TEXT)).returncode:
        pytest.skip("not a checkout that git can read")
    assert environment.commit().removesuffix("+") == done.stdout[:12]


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
    monkeypatch.setattr(environment, "PACKAGES", ("numpy", "no-such-package"))
    assert list(environment.versions()) == ["numpy"]
