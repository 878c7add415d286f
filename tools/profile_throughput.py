"""Every profile of the README, one after another, each written as a record.

    python tools/profile_throughput.py [SUBJECT ...] [--photos FOLDER] [--out tools/results]

Run it on a machine that does nothing else. Without subjects all are taken; those that need
photographs are left out where none are given.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# subject -> the words of each record
RECORDS: dict[str, list[list[str]]] = {
    "views": [["--size", "32"], ["--size", "96"], ["--size", "224"]],
    "convert": [[]],
    "cpl": [[]],
    "step": [[]],
    "scaling": [[]],
    "train": [[]],
    "plan": [["--config", "digits", "--steps", "60"]],
    "checkpoint": [[]],
    "photos": [["--folder", "{photos}"]],
    "predict": [["--folder", "{photos}"]],
}


def commands(subjects: list[str], photos: Path | None, out: Path) -> list[list[str]]:
    """Return the commands to run."""
    found = []
    for subject in subjects:
        for words in RECORDS[subject]:
            if subject == "convert" and photos:
                words = [*words, "--folder", "{photos}"]  # else it draws some
            if "{photos}" in words and photos is None:
                print(f"{subject} is left out: it needs --photos", file=sys.stderr)
                continue
            filled = [word.format(photos=photos) for word in words]
            found.append(["profile", subject, *filled, "--save", str(out)])
    return found


def main() -> int:
    """Take the profiles; return 0, or the exit code of the first that failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(RECORDS))
    parser.add_argument("--photos", type=Path, help="folder of photographs")
    parser.add_argument("--out", type=Path, default=ROOT / "tools/results")
    asked = parser.parse_args()
    unknown = set(asked.subjects) - RECORDS.keys()
    if unknown:
        parser.error(f"no subject is named {', '.join(sorted(unknown))}")
    failed = 0
    for command in commands(asked.subjects or list(RECORDS), asked.photos, asked.out):
        print(f"fastssl {' '.join(command)}", flush=True)
        code = subprocess.run([sys.executable, "-m", "fastssl", *command]).returncode
        failed = failed or code
    return failed


if __name__ == "__main__":
    sys.exit(main())
