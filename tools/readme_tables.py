"""Write the tables of README.md and docs/ from records, and the reference pages from the code.

    python tools/readme_tables.py

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. docs/algorithms.md and
docs/configuration.md are generated as a whole. A test checks that all pages are what this program
would write, so every number has a record and every setting its description.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mode
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the checkout, whatever is installed
README = ROOT / "README.md"
PAGES = (README, ROOT / "docs" / "results.md", ROOT / "docs" / "fast.md")
RESULTS = ROOT / "tools" / "results"


def record(name: str) -> dict[str, Any]:
    """Read one record."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def times(value: float) -> str:
    """Return 41.23 as 41 x and 1.234 as 1.2 x."""
    return f"{value:.0f} x" if value >= 10 else f"{value:.1f} x"


def seeds(values: list[float]) -> str:
    """Return one number a seed."""
    return " / ".join(f"{value:.2f}" for value in values)


def shown(row: str) -> str:
    """Return the name of a row as settings; records of 0.1.0 have British spelling."""
    settings = row.replace("algo.", "").replace("+", " ").replace("labelled", "labeled")
    return f"`{settings}`"


def errors(name: str, timed: bool = True) -> str:
    """Return a table of the errors of rows, the lowest first, and of the time of a step."""
    found = sorted(record(name)["results"], key=lambda row: float(row["rate"]))
    numbers = " / ".join(str(seed) for seed in range(len(found[0]["best"])))
    head = ["algorithm", f"best error %, seeds {numbers}", "median of the last 20 evaluations %"]
    rows = []
    for row in found:
        line = [shown(row["name"]), seeds(row["best"]), seeds(row["median_of_last_20"])]
        rows.append([*line, f"{1000 * row['seconds_per_step']:.0f}"] if timed else line)
    return table([*head, "ms a step"] if timed else head, rows)


def quickstart() -> str:
    """Return the quickstart's table; it was made on a busy machine, so without times."""
    return errors("digits-quickstart", timed=False)


def algorithms() -> str:
    """Return the table of all algorithms."""
    return errors("digits-algorithms")


def split() -> str:
    """Return what a separate pass for weak views does to the error and to the time of a step."""
    return errors("digits-split")


def averages() -> str:
    """Return what averages that fit a short run do; made beside other work, so without times."""
    return errors("digits-averages", timed=False)


def longtail() -> str:
    """Return errors and the accuracy of the rarest classes by prior."""
    rows = []
    for row in record("digits-longtail")["results"]:
        rare = [100 * sum(seed[-3:]) / 3 for seed in row["class_accuracy"]]
        rows.append([shown(row["name"]), seeds(row["best"]), seeds(rare)])
    head = ["algorithm", "best error %, seeds 0 / 1 / 2", "accuracy of the three rarest classes %"]
    return table(head, rows)


def cifar10() -> str:
    """Return the errors of the grid on real CIFAR-10."""
    return errors("cifar10-cpu", timed=False)


def fast_recipe() -> str:
    """Return the settings in which the fast recipe for CIFAR-10 differs from the paper's."""
    from fastssl.config.resolve import flatten, load
    from fastssl.config.schema import keys_that_may_differ

    paper, fast = load("cifar10"), load("fast/cifar10")
    before, now = ({**flatten(one.as_dict()), **one.config.averages()} for one in (paper, fast))
    before["ratio"] = paper.algorithm.ratio
    other = keys_that_may_differ("resume") | {"labels", "eval_every", "eval_every_late"}
    changed = [key for key in now if key not in other and now[key] != before[key]]
    head = ["key", "`cifar10`, as the paper", "`fast/cifar10`"]
    return table(head, [[f"`{k}`", *(f"`{typed(v[k])}`" for v in (before, now))] for k in changed])


def typed(value: Any) -> str:
    """Return a value as the command line takes it."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def cifar10_grid() -> str:
    """Return errors and times of the runs by the fast recipe, their plot, and what is missing."""
    if not (RESULTS / "cifar10-grid.json").is_file():
        return "No run is recorded yet."
    found = record("cifar10-grid")
    rows = [fast_row(row, found["differences"]) for row in found["results"]]
    head = ["task", "algorithm", "error %", "best %", "seeds", "minus FixMatch", "minutes"]
    parts = [table([*head, "minutes to FixMatch's final error", "images to it"], rows)]
    parts.append("![Test error by minutes](images/cifar10-grid.svg)")
    missing = [f"{len(names)} runs of `{name}`" for name, names in found["missing"].items()]
    return "\n\n".join([*parts, *([f"Not run yet: {', '.join(missing)}."] if missing else [])])


def fast_row(row: dict[str, Any], differences: list[dict[str, Any]]) -> list[str]:
    """Return the line of a cell; differences are of the final errors with the same seeds."""
    wanted = {"task": row["task"], "name": row["name"], "minus": row["baseline"]}
    pairs = [pair for pair in differences if wanted.items() <= pair.items()]
    minus = [f"{mean_std(pair['mean'], pair['std'], '+')} (n = {pair['n']})" for pair in pairs]
    goal, best = row["to_fixmatch"], sum(row["best"]) / len(row["best"])
    reached, images = "-", "-"
    if goal:
        count = len(row["seeds"])
        part = "" if goal["seeds"] == count else f" ({goal['seeds']} of {count})"
        reached, images = f"{goal['minutes']:.1f}{part}", f"{goal['images'] / 1e6:.2f} M"
    error = mean_std(row["rate"], row["spread"])
    texts = [
        error,
        f"{best:.2f}",
        str(len(row["seeds"])),
        *(minus or ["-"]),
        f"{row['minutes']:.1f}",
    ]
    return [row["task"], shown(row["name"]), *texts, reached, images]


def fast_tuning() -> str:
    """Return what changes of the fast recipe did to the error on validation images, by seed."""
    runs = record("fast-tuning")["runs"]
    # The values of most runs are those of the recipe; three keys follow from the number of steps.
    follow = {"seed", "supervised_steps", "warmup", "eval_every", "eval_every_late"}
    keys = [key for key in runs[0]["settings"] if key not in follow]
    usual = {key: mode(run["settings"][key] for run in runs) for key in keys}
    found: dict[str, dict[int, float]] = {}
    for run in runs:
        given = run["settings"]
        changed = [f"{key}={typed(given[key])}" for key in keys if given[key] != usual[key]]
        cell = found.setdefault(" ".join(changed), {})
        cell[given["seed"]] = run["evaluations"]["validation_error"][-1]
    first = sorted({seed for values in found.values() for seed in values})
    rows = []
    for name, values in sorted(found.items(), key=lambda item: item[1][first[0]]):
        texts = [f"{values[seed]:.2f}" if seed in values else "" for seed in first]
        rows.append([shown(name) if name else "the recipe", *texts])
    return table(["change", *(f"seed {seed}" for seed in first)], rows)


def mean_std(mean: float, std: float | None, sign: str = "") -> str:
    """Return a mean and, of several values, their standard deviation."""
    return f"{mean:{sign}.2f}" + ("" if std is None else f" ± {std:.2f}")


def by_labels(name: str) -> str:
    """Return the accuracies of a record by the number of labels per class, means over seeds."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in record(name)["results"]:
        count, model = row["name"].split(" per class, ")
        found.setdefault(model, {})[count] = row["accuracy"]
    counts = list(next(iter(found.values())))
    rows = [[model, *(spread(cells[count]) for count in counts)] for model, cells in found.items()]
    return table(["labels, model", *(f"{count} per class" for count in counts)], rows)


def spread(values: list[float]) -> str:
    """Return the mean of some values, then the smallest and the largest."""
    mean = f"{sum(values) / len(values):.1f}"
    return f"{mean} ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else mean


def probe() -> str:
    """Return the accuracies of classifiers on frozen features."""
    return by_labels("probe")


def few_labels() -> str:
    """Return the accuracies of the same classifiers, and of trainings with the same labels."""
    return by_labels("few-labels")


def peers() -> str:
    """Return the ratios of the first screen."""
    small, middle, large = (record(f"views-{size}")["ratio"] for size in (32, 96, 224))
    cpl, photos = record("cpl")["ratio"], record("photos")["ratio"]
    convert, step = record("convert")["ratio"], record("step")["ratio"]
    update = {row["name"]: row["rate"] for row in record("cpl")["results"]}  # the last: 1.28 M
    both = f"{times(cpl['counter'])} / {times(update['eager'] / update['counter'])}"
    steps = f"{times(step['reference'])} / {times(step['reference'] * step['bf16'])}"
    rows = [
        ["weak + strong views, 32 px", "Pillow + DataLoader, as TorchSSL", times(small["pil"])],
        ["", "torchvision v2", times(small["torchvision"])],
        ["", "DALI on the CPU", times(small["dali"])],
        ["", "FFCV, flips, shifts and cutout alone", times(small["ffcv"])],
        ["the same, 96 / 224 px", "Pillow", f"{times(middle['pil'])} / {times(large['pil'])}"],
        ["photographs to views, 224 px", "Pillow + DataLoader", times(photos["pil"])],
        ["curriculum update, 1.28 M images, compiled / eager", "recounting all marks", both],
        ["training step, WRN-28-2, fp32 / bf16", "written the reference's way, fp32", steps],
        ["conversion of photographs, 2 workers", "Pillow", times(convert["pillow"])],
    ]
    return table(["what", "against, in the same run on 2 cores", "fastssl is faster by"], rows)


def skipping() -> str:
    """Return the time of a step with each value of `algo.forward` by the share of trusted images.

    Each record of `profile_throughput.py --only skip` gives a row for each of its shares.
    """
    rows = []
    for file in sorted(RESULTS.glob("skip-*.json")):
        found = record(file.stem)
        cells = {
            row["name"]: f"{row['rate']:.0f} ({row['spread']:.0f})" for row in found["results"]
        }
        for share in found["settings"]["shares"]:
            names = [f"{forward} at {share} %" for forward in ("together", "split", "skip")]
            gains = [times(found["ratio"][name]) for name in names[:2]]
            network = f"`{found['settings']['model']}`"
            rows.append([network, f"{share} %", *(cells[name] for name in names), *gains])
    head = ["network", "trusted", *(f"`{forward}`" for forward in ("together", "split", "skip"))]
    return table([*head, "`skip` against `together`", "against `split`"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "peers": peers,
    "digits-quickstart": quickstart,
    "digits-algorithms": algorithms,
    "digits-split": split,
    "digits-averages": averages,
    "digits-longtail": longtail,
    "cifar10-cpu": cifar10,
    "cifar10-grid": cifar10_grid,
    "fast-recipe": fast_recipe,
    "fast-tuning": fast_tuning,
    "probe": probe,
    "few-labels": few_labels,
}


def filled(text: str) -> str:
    """Return a page with every table written again."""

    def fill(found: re.Match[str]) -> str:
        return f"<!-- table: {found[1]} -->\n{TABLES[found[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w-]+) -->\n.*?<!-- end -->", fill, text, flags=re.S)


def algorithms_page() -> str:
    """Return the page of all algorithms, from their docstrings and settings."""
    from fastssl.algorithms import ALGORITHMS

    source = "This page is generated from the docstrings of `fastssl/algorithms/`."
    lines = ["# Algorithms", "", source]
    for name in ALGORITHMS:
        entry = ALGORITHMS[name]
        text = sys.modules[entry.step.__module__].__doc__ or ""
        lines += ["", f"## {name}", "", linked(text.strip()), ""]
        lines += [f"Default ratio of unlabeled to labeled images: {entry.ratio}."] * entry.unlabeled
        lines += ["", *setting_rows(entry.config.model_fields, "algo.")]
    return "\n".join(lines) + "\n"


def configuration_page() -> str:
    """Return the page of all keys of a run."""
    from fastssl.config.schema import RunConfig

    text = """# Configuration

This page is generated from `fastssl/config/schema.py`. A value is taken from the default, then the
YAML file, then `key=value` on the command line; the last one wins. `fastssl config digits` prints
the values of that configuration and where each comes from. The settings of an algorithm are typed
as `algo.KEY=VALUE`; see [Algorithms](algorithms.md).

A file writes the settings of its own algorithm under `algo`, and those of several, for whichever is
chosen, under `algorithms`. With `base` it changes values of a shipped configuration:

```yaml
base: fast/cifar10
steps: 8000
algorithms:
  fixmatch: {threshold: 0.9}
  flexmatch: {threshold: 0.9}
```"""
    return "\n".join([text, "", *setting_rows(RunConfig.model_fields, "")]) + "\n"


def setting_rows(fields: dict[str, Any], prefix: str) -> list[str]:
    """Return a table of settings, or nothing where there is none."""
    if not fields:
        return ["It has no settings."]
    rows = [
        [f"`{prefix}{name}`", f"`{default_of(field)}`", " ".join((field.description or "").split())]
        for name, field in fields.items()
    ]
    return table(["key", "default", "meaning"], rows).splitlines()


def default_of(field: Any) -> str:
    """Return a default as the command line takes it."""
    return typed(field.get_default(call_default_factory=True)) or "{}"


def linked(text: str) -> str:
    """Make addresses links."""
    return re.sub(r"(?<![(<])(https://[\w./-]+\w)", r"<\1>", text)


REFERENCE: dict[str, Callable[[], str]] = {
    "algorithms.md": algorithms_page,
    "configuration.md": configuration_page,
}


def write_reference() -> None:
    """Write the generated pages."""
    for name, page in REFERENCE.items():
        (ROOT / "docs" / name).write_text(page())


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text()))
    write_reference()
