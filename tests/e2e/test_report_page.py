"""A real sweep, killed and resumed, and its report in a real browser."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from fastssl import report
from fastssl.sweep import grid
from tests.browser import browser, needs_chromium, screen
from tests.fake_runs import write_run

GRID = """
config: digits
set: {model: wrn-10-1, steps: %d, batch: 10, ratio: 2, eval_every: 2, eval_every_late: 1,
      log_every: 1, checkpoint_every: 2, threads: 1, loader_threads: 1, tensorboard: false}
grid: {algorithm: [fixmatch, flexmatch]%s}
"""
SCREENS = [(390, 844), (1280, 900)]
STOPPING = "stopping after this step"  # what a cell prints at SIGTERM

# Python imports `sitecustomize` at its start. With this one, once HOLD_COUNT cells have begun, a
# cell makes the file HOLD.held before its fourth step, and waits until the file HOLD is gone.
SITECUSTOMIZE = """
import os
import time
from importlib.machinery import PathFinder
from pathlib import Path

real = PathFinder.find_spec
file, count = Path(os.environ["HOLD"]), int(os.environ["HOLD_COUNT"])


def hold(module):
    train_step = module.train_step

    def held(run, batch, step):
        begun = len(list(file.parent.glob("runs/*/metrics.jsonl")))
        if step == 3 and begun >= count:
            file.with_suffix(".held").touch()
            while file.exists():
                time.sleep(0.01)
        return train_step(run, batch, step)

    module.train_step = held


def find_spec(name, path=None, target=None):
    spec = real(name, path, target)
    if name == "fastssl.engine.loop":
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (execute(module), hold(module))
    return spec


PathFinder.find_spec = find_spec
"""


def start(folder: Path, **more: str) -> subprocess.Popen:
    arguments = ["sweep", str(folder / "tiny.yaml"), "--out", str(folder / "runs"), "--jobs", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    line = [sys.executable, "-m", "fastssl", *arguments]
    return subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True)


def logs(folder: Path) -> str:
    """Return what all cells of a sweep have printed."""
    return "".join(path.read_text() for path in folder.glob("runs/logs/*"))


def wait_until(condition: Callable[[], bool], process: subprocess.Popen | None = None) -> None:
    """Wait for a condition, which must come true before the process ends."""
    end = time.monotonic() + 300
    while not condition():
        if process and process.poll() is not None:
            raise AssertionError(f"the sweep has ended: {process.communicate()[1]}")
        assert time.monotonic() < end, "waited in vain for 300 s"
        time.sleep(0.02)


def start_and_kill(folder: Path, number: int, count: int) -> None:
    """Start a sweep and kill it in the middle of a cell, once `count` cells have begun."""
    hold, hook = folder / f"hold-{count}", folder / "hook"
    hold.touch()
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(SITECUSTOMIZE)
    path = os.pathsep.join([str(hook), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = start(folder, HOLD=str(hold), HOLD_COUNT=str(count), PYTHONPATH=path)
    try:
        wait_until(hold.with_suffix(".held").exists, process)
        before = logs(folder).count(STOPPING)
        process.send_signal(number)
        # A sweep passes SIGTERM on; when it is killed, the kernel sends SIGTERM to its cells.
        wait_until(lambda: logs(folder).count(STOPPING) > before)
        hold.unlink()
        printed = process.communicate(timeout=300)[1]
    finally:
        process.kill()
        hold.unlink(missing_ok=True)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number), printed


def sweep_and_kill(folder: Path, steps: int, axes: str, kills: list[tuple[int, int]]) -> Path:
    """Train a grid, killed by each signal once so many cells have begun; return its folder."""
    (folder / "tiny.yaml").write_text(GRID % (steps, axes))
    runs = folder / "runs"
    for number, count in kills:
        start_and_kill(folder, number, count)
        assert len(finished(runs)) < len(grid.read(folder / "tiny.yaml")[1])
    last = start(folder)
    printed = last.communicate(timeout=600)[1]
    assert last.returncode == 0, printed
    assert len(finished(runs)) == len(grid.read(folder / "tiny.yaml")[1])
    assert logs(folder).count("interrupted and saved") >= len(kills)
    return runs


def finished(runs: Path) -> list[Path]:
    """Return the folders of the runs that came to their end."""
    found = runs.glob("*/summary.json")
    return [p.parent for p in found if json.loads(p.read_text())["status"] == "finished"]


def check_runs(runs: Path, steps: int, out: Path) -> None:
    """Every run is whole, and the report agrees with its metrics."""
    report.write([runs], out)
    rows = {row["run"]: row for row in json.loads(out.read_text())["runs"]}
    for folder in sorted(path.parent for path in runs.glob("*/summary.json")):
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        errors = [line["error"] for line in lines if line["kind"] == "eval"]
        trained = [line["step"] for line in lines if line["kind"] == "train"]
        assert trained == list(range(1, steps + 1))
        row = rows[folder.name]
        assert row["status"] == "finished"
        assert row["best_error"] == min(errors)
        assert row["median_error"] == statistics.median(errors[-20:])
        table = lines[-1]["confusion"]
        right = sum(line[c] for c, line in enumerate(table)) / sum(map(sum, table))
        assert 100 - 100 * right == pytest.approx(errors[-1])
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["best_error"] == row["best_error"]
        assert summary["median_error"] == row["median_error"]


def check_page(driver, page: Path, width: int, height: int, dark: bool) -> None:
    """No error, every plot drawn, hover and legend at work, nothing wider than the screen."""
    screen(driver, width, height, dark)
    driver.get(page.as_uri())
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    plots = driver.find_elements("css selector", "section.plot")
    assert len(plots) >= 10
    for plot in plots:
        name = plot.get_attribute("data-plot")
        drawn = driver.execute_script(DRAWN, plot)
        assert drawn["curves"] > 0, f"{name} is empty"
        assert drawn["finite"], f"{name} has a point without coordinates"
        assert driver.execute_script(HOVER, plot).strip(), f"{name}: hover shows nothing"
        shown = driver.execute_script(HIDE, plot)
        if shown is not None:  # a plot without a legend
            assert shown["hidden"] < drawn["curves"], f"{name}: the legend hides nothing"
            assert shown["back"] == drawn["curves"], f"{name}: what is hidden does not come back"
    back = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(20, 23, 26)") == dark
    assert [line for line in driver.get_log("browser") if line["level"] != "INFO"] == []


DRAWN = """
const curves = [...arguments[0].querySelectorAll(".curve")];
const box = (c) => c.getBBox();
return {curves: curves.length, finite: curves.every((c) => !c.outerHTML.includes("NaN")
  && Number.isFinite(box(c).width) && box(c).width + box(c).height > 0)};
"""
HOVER = """
const svg = arguments[0].querySelector("svg");
const mark = svg.querySelector("rect.curve") || svg;
svg.scrollIntoView();
const box = mark.getBoundingClientRect();
mark.dispatchEvent(new PointerEvent("pointermove", {bubbles: true,
  clientX: box.left + box.width / 2, clientY: box.top + box.height / 2}));
const tip = arguments[0].querySelector(".tip");
return tip.hidden ? "" : tip.textContent;
"""
HIDE = """
const button = arguments[0].querySelector(".legend button");
if (!button) return null;
const count = () => arguments[0].querySelectorAll(".curve").length;
button.click();
const hidden = count();
arguments[0].querySelector(".legend button").click();
return {hidden, back: count()};
"""


def check_tools(driver) -> None:
    """Time axis, accuracy to reach, choice, saving: what the buttons do."""
    plot = driver.find_element("css selector", "#accuracy")
    assert plot.find_element("css selector", "svg").text.endswith("step")
    plot.find_element("css selector", "button.axis").click()
    assert plot.find_element("css selector", "svg").text.endswith("time")
    plot.find_element("css selector", "input").send_keys("1")
    assert "fixmatch: step" in plot.find_element("css selector", ".answer").text
    links = plot.find_elements("css selector", ".runs a")
    assert links and all(link.get_attribute("href").startswith("file://") for link in links)
    saved = driver.execute_async_script(SAVE, plot)
    assert saved.startswith("<svg") and "polyline" in saved and "var(--" not in saved
    wide = driver.find_element("css selector", "#thresholds select, #thresholds .tools span")
    assert "flexmatch" in wide.text


def check_print(driver) -> None:
    """On paper a plot is labeled with its choice, on white, and has no buttons."""
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": [dark]})
    back = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert back == "rgb(255, 255, 255)"
    assert driver.find_element("css selector", "#thresholds .tools > :first-child").is_displayed()
    buttons = driver.find_elements("css selector", ".tools button")
    assert buttons and not any(button.is_displayed() for button in buttons)


SAVE = """
const done = arguments[arguments.length - 1];
URL.createObjectURL = (blob) => { blob.text().then(done); return "data:,"; };
HTMLAnchorElement.prototype.click = () => {};
arguments[0].querySelector("button.save").click();
"""


def check_screens(folder: Path, runs: Path) -> None:
    """Open the report of a sweep as on a phone and on a desk; keep a screenshot of each."""
    report.write([runs], runs / "report.html")
    with browser(folder) as driver:
        for (width, height), dark in zip(SCREENS, (False, True), strict=True):
            check_page(driver, runs / "report.html", width, height, dark)
            check_screenshot(driver, folder / f"report-{width}.png", width, height)
        check_tools(driver)
        check_print(driver)
        assert driver.find_elements("css selector", "#confusion rect.curve")


def check_screenshot(driver, path: Path, width: int, height: int) -> None:
    """Save what the screen shows of a plot; it must be no empty page."""
    driver.execute_script("document.querySelector('#accuracy').scrollIntoView()")
    assert driver.save_screenshot(str(path))
    with Image.open(path) as image:
        assert image.size == (width, height)
        colors = image.convert("RGB").getcolors(width * height)
    assert len(colors) > 20, f"{path.name} shows next to nothing"
    assert max(count for count, _ in colors) < 0.98 * width * height


@needs_chromium
def test_a_sweep_killed_in_the_middle_ends_complete_and_its_report_opens(tmp_path):
    runs = sweep_and_kill(tmp_path, 6, "", [(signal.SIGKILL, 1)])
    check_runs(runs, 6, tmp_path / "report.json")
    check_screens(tmp_path, runs)


@needs_chromium
def test_the_odd_cases_open_too(tmp_path):
    runs = tmp_path / "runs"
    evil = "<img src=x onerror=alert(1)>"
    write_run(runs / "two", changes={"data": evil}, classes=2, confusion=True)
    write_run(runs / "named", changes={"data": "own"}, classes=3, confusion=True)
    names = ["a cat of a very long name", evil, "dog"]
    (runs / "named" / "environment.json").write_text(json.dumps({"class_names": names}))
    write_run(runs / "many", changes={"data": "birds"}, classes=1000, evals=5)
    write_run(runs / "short", {"seed": 1}, evals=1, until=1.0)
    write_run(runs / "variant", {"algo.mapping": "linear"})
    write_run(runs / "failed", {"algorithm": "uda"}, status="failed", until=0.1)
    report.write([runs], tmp_path / "odd.html")
    with browser(tmp_path) as driver:
        check_page(driver, tmp_path / "odd.html", *SCREENS[0], True)
        assert driver.find_elements("css selector", "img") == []
        assert evil in driver.find_element("css selector", "#best-error").text
        check_sticky(driver)
        check_names(driver, "own, 40 labels")
        check_minutes(driver)


def check_sticky(driver) -> None:
    """The names of the rows stay in sight where a table is wider than the screen."""
    wide = driver.find_element("css selector", "#best-error .wide")
    name = wide.find_element("css selector", "tbody th")
    before = driver.execute_script("return arguments[0].getBoundingClientRect().left", name)
    moved = driver.execute_script(
        "arguments[0].scrollLeft = 50; return arguments[0].scrollLeft", wide
    )
    after = driver.execute_script("return arguments[0].getBoundingClientRect().left", name)
    assert moved == 50 and after == before


def check_names(driver, task: str) -> None:
    """A confusion matrix has the names of the classes at its sides and shares in its fields."""
    plot = driver.find_element("css selector", "#confusion")
    select = plot.find_element("css selector", "select")
    option = next(o for o in select.find_elements("css selector", "option") if task in o.text)
    option.click()
    texts = [text.text for text in plot.find_elements("css selector", "svg text")]
    assert texts.count("dog") == 2 and texts.count("a cat of…") == 2
    assert texts.count("96") == 3 and texts.count("2") == 6  # of 94 images


def check_minutes(driver) -> None:
    """The axis of times has its ticks at round minutes."""
    plot = driver.find_element("css selector", "#accuracy")
    plot.find_element("css selector", "button.axis").click()
    texts = [text.text for text in plot.find_elements("css selector", "svg text")]
    times = [text for text in texts if ":" in text]
    assert times == ["0:00", "1:00"]  # of runs of 100 seconds, on a narrow screen


@needs_chromium
def test_a_legend_that_does_not_bring_a_curve_back_is_noticed(tmp_path):
    write_run(tmp_path / "runs" / "a", confusion=True)
    page = tmp_path / "page.html"
    report.write([tmp_path / "runs"], page)
    text = page.read_text()
    assert "else this.hidden.delete(name);" in text
    page.write_text(text.replace("else this.hidden.delete(name);", ""))
    with browser(tmp_path) as driver, pytest.raises(AssertionError, match="does not come back"):
        check_page(driver, page, *SCREENS[1], False)


@needs_chromium
@pytest.mark.slow
def test_the_2_by_2_by_2_grid_killed_twice_ends_complete(tmp_path):
    kills = [(signal.SIGTERM, 2), (signal.SIGKILL, 5)]
    runs = sweep_and_kill(tmp_path, 20, ", labels: [40, 100], seed: [0, 1]", kills)
    check_runs(runs, 20, tmp_path / "report.json")
    check_screens(tmp_path, runs)
