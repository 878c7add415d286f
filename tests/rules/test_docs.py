"""The manual builds without a warning, and every link in the repository's pages leads somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_manual_builds_in_strict_mode(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(
        [*command, "--site-dir", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "algorithms.html").is_file()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_to_files_and_headings_that_exist(page):
    wrong = []
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / page).read_text()):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        if not (ROOT / path).exists():
            wrong.append(target)
        elif anchor:
            headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(), re.M)
            names = {
                re.sub(r"[^a-z0-9 -]", "", text.lower()).replace(" ", "-") for text in headings
            }
            wrong += [] if anchor in names else [target]
    assert not wrong
