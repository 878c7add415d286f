"""Measure our stages against their peers, in the same interleaved run.

    python tools/profile_throughput.py --only views --against pil,dali --size 32 --json
    python tools/profile_throughput.py [--photos FOLDER]

The first form measures one subject and prints its record. Further options are those of
`fastssl profile SUBJECT`; those of photos, predict, scaling and skip are in
tools/bench/subjects.py. The second form writes every record of the README to tools/results, one
after another; use a machine that does nothing else. Subjects that need photos are skipped unless
--photos is given.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fastssl.cli.profile import show_record
from fastssl.errors import ConfigError, UserError
from fastssl.profiling.measure import save
from fastssl.profiling.subjects import parse_options
from tools.bench.subjects import SUBJECTS

# subject -> the options of each of its records
RECORDS: dict[str, list[list[str]]] = {
    "views": [["--size", "32"], ["--size", "96"], ["--size", "224"]],
    "convert": [[]],
    "cpl": [[]],
    "step": [[]],
    "scaling": [[]],
    "skip": [[], ["--config", "cifar10", "--steps", "1", "--repetitions", "3"]],
    "train": [[]],
    "plan": [["--config", "digits", "--steps", "60"]],
    "photos": [["--folder", "{photos}"]],
    "predict": [["--folder", "{photos}"]],
}


def measure(subject: str, given: dict[str, Any], against: str | None) -> dict[str, Any]:
    """Measure a subject with its peers, if it has any; return the record."""
    options = parse_options(subject, given, SUBJECTS)
    peers = find_spec(f"tools.bench.{subject}") is not None
    module = import_module(f"{'tools.bench' if peers else 'fastssl.profiling'}.{subject}")
    if against is not None and subject != "views":
        raise ConfigError(f"--against does not go with {subject}", "use it with --only views")
    chosen = {} if against is None else {"against": tuple(filter(None, against.split(",")))}
    record: dict[str, Any] = module.run(options, **chosen)
    return record


def pairs(arguments: list[str]) -> dict[str, Any]:
    """Turn `--name value`, `--flag` and `key=value` overrides into options."""
    found: dict[str, Any] = {}
    overrides = []
    while arguments:
        first, *arguments = arguments
        if not first.startswith("--"):
            overrides.append(first)
            continue
        name, equals, value = first[2:].partition("=")
        if not equals and arguments and not arguments[0].startswith("--"):
            value, *arguments = arguments
        elif not equals:
            value = "true"
        found[name.replace("-", "_")] = value
    return {**found, "overrides": overrides} if overrides else found


def commands(subjects: list[str], photos: Path | None, out: Path) -> list[list[str]]:
    """Return the arguments of this program for each record."""
    found = []
    for subject in subjects:
        for options in RECORDS[subject]:
            if subject == "convert" and photos:
                options = [*options, "--folder", "{photos}"]  # by default, photos are generated
            if "{photos}" in options and photos is None:
                print(f"{subject} is skipped: it needs --photos", file=sys.stderr)
                continue
            filled = [option.format(photos=photos) for option in options]
            found.append(["--only", subject, *filled, "--out", str(out)])
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure one subject, or write all records; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--only", metavar="SUBJECT", choices=SUBJECTS, help=", ".join(SUBJECTS))
    parser.add_argument("--against", help="peers of the views, separated by commas")
    parser.add_argument("--photos", type=Path, help="folder of photos, for all records")
    parser.add_argument("--out", type=Path, help="folder for the record; default: do not write it")
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    given, rest = parser.parse_known_args(arguments)
    if given.only is None:
        if rest or given.against or given.json:
            parser.error("options need --only SUBJECT")
        return write_all(given.photos, given.out or ROOT / "tools/results")
    try:
        record = measure(given.only, pairs(rest), given.against)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if given.out:
        save(record, given.out)
    show_record(record, as_json=given.json)
    return 0


def write_all(photos: Path | None, out: Path) -> int:
    """Write all records, each in its own process; return 0 or the first exit code that is not."""
    failed = 0
    for command in commands(list(RECORDS), photos, out):
        print(f"profile_throughput.py {' '.join(command)}", flush=True)
        code = subprocess.run([sys.executable, __file__, *command]).returncode
        failed = failed or code
    return failed


if __name__ == "__main__":
    sys.exit(main())
