"""Run folders as training writes them, with plausible numbers but without training."""

import json
import random
from pathlib import Path
from typing import Any

import yaml

from fastssl.config.resolve import load

PSEUDO_LABELING = ("fixmatch", "flexmatch", "uda", "flexuda", "pseudolabel", "flexpl")
FINAL = {"flexmatch": 5.0, "flexuda": 5.5, "fixmatch": 8.0, "uda": 10.0, "supervised": 40.0}


def write_run(
    folder: Path,
    keys: dict[str, Any] | None = None,
    *,
    config: str = "digits",
    evals: int = 30,
    logs: int = 40,
    classes: int = 10,
    status: str | None = "finished",
    until: float = 1.0,
    changes: dict[str, Any] | None = None,
    confusion: bool = False,
    inputs: dict[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Write a run folder and return its metrics; `changes` go to config.yaml unchecked."""
    resolved = load(config, {"steps": 1000, "log_every": 1000 // logs, **(keys or {})})
    values = {**resolved.as_dict(), **resolved.config.averages(), **(changes or {})}
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    (folder / "environment.json").write_text(json.dumps({"inputs": inputs} if inputs else {}))
    draw = random.Random(f"{values['seed']} {values['algorithm']} {values['labels']}")
    end = round(until * values["steps"])
    every = values["log_every"]
    trains = [train_line(values, step, classes, draw) for step in range(every, end + 1, every)]
    spots = sorted({round((k + 1) * values["steps"] / evals) for k in range(evals)})
    evaluated = [eval_line(values, step, classes, draw) for step in spots if step <= end]
    if confusion and evaluated:
        evaluated[-1]["confusion"] = [
            [90 if x == y else 2 for x in range(classes)] for y in range(classes)
        ]
    lines = sorted([*trains, *evaluated], key=lambda line: (line["step"], line["kind"] == "eval"))
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if status:
        summary: dict[str, Any] = {"status": status, "steps": end, "seconds_per_step": 0.1}
        if status == "failed":
            summary = {"status": "failed", "exit": 4, "what": "loss is not finite at step 7"}
        elif evaluated:
            errors = [line["error"] for line in evaluated]
            summary |= {"best_error": min(errors), "images_per_s": 950.0, "data_wait": 0.013}
        (folder / "summary.json").write_text(json.dumps(summary))
    return lines


def progress(values: dict[str, Any], step: int) -> float:
    pace = 12.0 if values["algorithm"].startswith("flex") else 5.0
    return 1 - 2.718281828 ** (-pace * step / values["steps"])


def train_line(values: dict[str, Any], step: int, classes: int, draw: random.Random) -> Any:
    far = progress(values, step)
    line = {"step": step, "kind": "train", "loss": 3 - 2.5 * far + 0.1 * draw.random()}
    if values["algorithm"] in PSEUDO_LABELING:
        shares = [min(1.0, far * (0.8 + 0.2 * draw.random())) for _ in range(classes)]
        line |= {"trusted": far, "pseudo/coverage": far, "pseudo/accuracy": 0.5 + 0.45 * far}
        line |= {"pseudo_class_coverage": shares, "pseudo_class_accuracy": shares[::-1]}
    speed = {"speed/images_per_s": 950.0, "speed/data_wait": 0.013}
    return {**line, "lr": 0.03, **speed, "seconds": 0.1 * step}


def eval_line(values: dict[str, Any], step: int, classes: int, draw: random.Random) -> Any:
    far = progress(values, step)
    final = FINAL.get(values["algorithm"], 20.0)
    error = 90 - (90 - final) * far + draw.random()
    row = [max(0.0, min(1.0, 1 - error / 100 + 0.1 * draw.uniform(-1, 1))) for _ in range(classes)]
    line = {"step": step, "kind": "eval", "error": error, "loss": 0.02 * error}
    if classes > 5:
        line["top5_error"] = error / 8
    right = 1 - error / 100
    line |= {"precision": right, "recall": right, "f1": right, "ece": 0.05}
    line["auc"] = 1 - error / 500 if classes <= 100 else None
    line |= {"class_accuracy": row, "seconds": 0.1 * step, "tables": {}}
    if values["algorithm"].startswith("flex"):
        counts = [round(140 * share * far) for share in row]
        unused = max(0, 150 * classes - sum(counts))
        line["tables"] = {"thresholds": [0.95 * share * far for share in row]}
        line["tables"]["counts"] = [*counts, unused]
    return line
