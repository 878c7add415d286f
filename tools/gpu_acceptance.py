"""The acceptance run on a machine with GPUs: the GPU tests, rates, one record.

    python tools/gpu_acceptance.py [--out tools/results] [--photos FOLDER] [--quick]

Runs the GPU tests (no host sync, equal view kernels, one device against several), then
`profile_throughput.py` for views, step, cpl and train, and writes gpu-acceptance.json. Training is
measured on CIFAR-10 if it is converted (`fastssl convert cifar10 --download`), else on digits.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def run_tests() -> dict[str, Any]:
    """Run every test marked `gpu`; return their outcome."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    print(done.stdout[-2000:])
    failed = [line for line in lines if line.startswith("FAILED")]
    return {"passed": done.returncode == 0, "summary": lines[-1] if lines else "", "failed": failed}


def profiles(quick: bool, photos: Path | None) -> list[tuple[str, list[str]]]:
    """Return the subjects to measure, each with its options."""
    from pipelines.store.store import default_place

    few = ["--repetitions", "2"] if quick else []
    data = "cifar10" if (default_place("cifar10") / "dataset.json").exists() else "digits"
    wanted = [("views", ["--size", str(size), "--device", "cuda", *few]) for size in (32, 224)]
    wanted += [("step", ["--device", "cuda", "--batch", "64", "--compiled", *few])]
    wanted += [("cpl", ["--device", "cuda", *few]), ("train", ["--config", data, *few])]
    if photos:
        wanted.append(("photos", ["--folder", str(photos), *few]))
    return wanted


def profile(subject: str, options: list[str]) -> dict[str, Any]:
    """Measure one subject; return its record, or why there is none."""
    arguments = ["tools/profile_throughput.py", "--only", subject, *options, "--json"]
    print(" ".join(arguments), flush=True)
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        return {"what": subject, "failed": done.stderr.strip()[-500:]}
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def main() -> int:
    """Run everything and write the record; return 0 if all tests passed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "tools/results")
    parser.add_argument("--photos", type=Path, help="folder of photos")
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print(
            "error: this machine has no GPU\n  fix: run it on a machine that has one",
            file=sys.stderr,
        )
        return 5
    from fastssl.profiling.measure import environment, save

    tests = run_tests()
    records = [profile(*one) for one in profiles(options.quick, options.photos)]
    record = {
        "what": "gpu acceptance",
        "environment": environment(),
        "devices": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
        "tests": tests,
        "results": [row for one in records for row in one.get("results", [])],
        "ratio": {one["what"]: one.get("ratio", {}) for one in records},
        "profiles": records,
    }
    print(save(record, options.out))
    return 0 if tests["passed"] and not any("failed" in one for one in records) else 1


if __name__ == "__main__":
    sys.exit(main())
