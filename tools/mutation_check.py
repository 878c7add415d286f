"""Change the core in 200 places, one at a time, and count the changes that its tests notice.

    python tools/mutation_check.py                # 200 mutants; writes tools/results/mutation.json
    python tools/mutation_check.py --survivors    # only those that the record lists as survivors

`tools/mutation/mutants.py` says what a mutant is and which are left out. Each one is written into a
copy of the checkout, never into the checkout itself, and the quick tests of its module run there,
those that find most first. A mutant is killed if a test fails or does not end in time. A program
that was stopped goes on where it was (`runs/mutation.jsonl`): an outcome counts as long as neither
the code nor the tests that it rests on were changed.

A survivor that computes the same as the original is listed in `tools/mutation/equivalents.json`
with the reason; it must still be sampled and must still survive.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.mutation.mutants import Mutant, sample
from tools.mutation.workshop import Workshop

RECORD = ROOT / "tools" / "results" / "mutation.json"
EQUIVALENTS = ROOT / "tools" / "mutation" / "equivalents.json"


def fingerprint(folder: Path, *patterns: str) -> str:
    """Return a hash of the Python files of a checkout whose paths fit one of the patterns."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*.py")}
    names = sorted(name for name in paths if any(fnmatch(name, pattern) for pattern in patterns))
    content = b"\0".join(name.encode() + paths[name].read_bytes() for name in names)
    return hashlib.sha256(content).hexdigest()[:16]


def evidence(folder: Path, outcome: dict[str, Any]) -> str:
    """Return a hash of the tests that an outcome rests on; with other tests it does not count.

    A killed mutant stays killed as long as the file of the test that failed is unchanged. One that
    survived is tested again when any test was changed.
    """
    if outcome["outcome"] != "killed" or "::" not in outcome["by"]:
        return fingerprint(folder, "tests/*")
    helpers = ("tests/[!u]*.py", "tests/unit/*/[!t]*.py")  # what test files import
    return fingerprint(folder, outcome["by"].split("::")[0], *helpers)


def main() -> None:
    """Test the sampled mutants, print each survivor, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--survivors", action="store_true", help="only those of the record")
    parser.add_argument("--state", type=Path, default=ROOT / "runs" / "mutation.jsonl")
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    mutants = sample(ROOT, options.count, options.seed)
    if options.survivors:
        listed = json.loads(options.record.read_text())["survivors"]
        known = {(entry["module"], entry["before"], entry["after"]) for entry in listed}
        mutants = [m for m in mutants if (m.module, m.before, m.after) in known]
    began = time.monotonic()
    outcomes = test_all(mutants, options.state)
    if not options.survivors:
        record = summary(mutants, outcomes, options.seed, time.monotonic() - began)
        options.record.write_text(json.dumps(record, indent=2) + "\n")


def test_all(mutants: list[Mutant], state: Path) -> list[dict[str, Any]]:
    """Return the outcome of each mutant; those in the state file are not tested again."""
    state.parent.mkdir(parents=True, exist_ok=True)
    lines = state.read_text().splitlines() if state.exists() else []
    found = {entry["key"]: entry for entry in map(json.loads, lines)}
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder, state.open("a") as file:
        workshop = Workshop(Path(folder))
        copy = workshop.copy
        stamp = fingerprint(copy, "fastssl/*", "pipelines/*")
        done = {key: one for key, one in found.items() if one["tests"] == evidence(copy, one)}
        for number, mutant in enumerate(mutants, 1):
            key = hashlib.sha256(f"{stamp}{mutant.module}{mutant.source}".encode()).hexdigest()
            if key not in done:
                outcome = workshop.outcome(mutant.module, mutant.source)
                done[key] = {"key": key, "tests": evidence(copy, outcome), **outcome}
                print(json.dumps(done[key]), file=file, flush=True)
            outcome = {
                name: value for name, value in done[key].items() if name not in ("key", "tests")
            }
            outcomes.append(outcome)
            text = f"{number}/{len(mutants)} {mutant.module}:{mutant.line} {outcome['outcome']}"
            print(f"{text} {outcome['seconds']} s {outcome.get('by', '')}", flush=True)
            if outcome["outcome"] == "survived":
                print(f"    - {mutant.before}\n    + {mutant.after}", flush=True)
    return outcomes


def summary(
    mutants: list[Mutant], outcomes: list[dict[str, Any]], seed: int, seconds: float
) -> dict[str, Any]:
    """Return the record: the share killed by package, every survivor, every equivalent."""
    from fastssl.profiling.measure import environment

    entries = []
    for mutant, outcome in zip(mutants, outcomes, strict=True):
        change = {"module": mutant.module, "line": mutant.line, "operator": mutant.operator}
        entries.append({**change, "before": mutant.before, "after": mutant.after, **outcome})
    reasons = {
        (one["module"], one["before"], one["after"]): one["reason"]
        for one in json.loads(EQUIVALENTS.read_text())
    }
    alive = [entry for entry in entries if entry["outcome"] == "survived"]
    for entry in alive:
        entry["reason"] = reasons.pop((entry["module"], entry["before"], entry["after"]), "")
    equivalents = [entry for entry in alive if entry["reason"]]
    survivors = [entry for entry in alive if not entry["reason"]]
    for change in reasons:
        print(f"listed as equivalent, but not among the survivors: {change}")
    groups = {"all": entries}
    for entry in entries:
        groups.setdefault(str(Path(entry["module"]).parent), []).append(entry)
    print(f"{len(entries)} mutants, {len(entries) - len(alive)} killed, ", end="")
    print(f"{len(equivalents)} equivalent, {len(survivors)} survived, {seconds:.0f} s")
    return {
        "what": "mutation",
        "environment": environment(),
        "seed": seed,
        "seconds": round(seconds),
        "results": [row(name, group) for name, group in groups.items()],
        "ratio": {},
        "survivors": survivors,
        "equivalents": equivalents,
        "mutants": entries,
    }


def row(name: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the line of the record for some mutants; equivalent ones count as not killed."""
    killed = sum(entry["outcome"] != "survived" for entry in entries)
    counts = {"tried": len(entries), "killed": killed}
    counts["timeouts"] = sum(entry["outcome"] == "timeout" for entry in entries)
    counts["equivalent"] = sum(bool(entry.get("reason")) for entry in entries)
    share = round(killed / len(entries), 4)
    return {"name": name, "rate": share, "unit": "share killed", "spread": 0.0, **counts}


if __name__ == "__main__":
    main()
