"""The command: fast where it needs no torch, two lines and a code where the user errs."""

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from fastssl.cli.command import app, main
from fastssl.config import resolve
from fastssl.sweep import grid
from tests.process_output import PATIENCE

ROOT = Path(__file__).resolve().parents[3]
DOCS = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = ("README.md", *(f"docs/{path.name}" for path in DOCS))

LIGHT = [
    ["--help"],
    ["--version"],
    ["list", "algorithms"],
    ["list", "datasets"],
    ["list", "models"],
    ["list", "configs"],
    ["config", "cifar10"],
]


def run(*words, cwd=None):
    command = [sys.executable, "-m", "fastssl", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=PATIENCE)


def documented():
    """Return every command of the documents, in blocks and in sentences, and of the help."""
    found = []
    for name in DOCUMENTS:
        text = (ROOT / name).read_text()
        blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
        found += re.findall(r"^(?:torchrun .*-m )?fastssl (\w.*)", blocks, re.MULTILINE)
        found += re.findall(r"`fastssl (\w+ [^`]*)`", text)  # a verb alone is only its name
    commands = typer.main.get_command(app).commands
    verbs = [*commands.values(), *commands["profile"].commands.values()]
    found += [verb.epilog.removeprefix("Example: fastssl ") for verb in verbs]
    assert len(found) > 40
    return found


@pytest.mark.parametrize("line", documented())
def test_a_command_of_the_documents_can_be_typed(line):
    verb, *words = shlex.split(line, comments=True)
    command = typer.main.get_command(app).commands[verb]
    if verb == "profile":
        subject, *words = words
        command = command.commands[subject]
    given = command.make_context(verb, words).params
    if verb in ("train", "config", "views"):
        settings = [re.sub(r"\$\{\w+:-(\w+)\}", r"\1", word) for word in given["overrides"] or []]
        # Files of the reader's own do not exist here.
        resolve.load(given["config"], [one for one in settings if ".py" not in one])
    if verb == "sweep":
        assert grid.read(grid.find_sweep(given["file"]))[1]


def test_train_refuses_json_without_a_dry_run():
    ended = run("train", "digits", "--json")
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[1] == "  fix: add --dry-run or drop --json"


def test_light_verbs_import_no_torch():
    code = (
        "import sys\n"
        "from fastssl.cli.command import app\n"
        f"for words in {LIGHT!r}:\n"
        "    sys.argv = ['fastssl', *words]\n"
        "    try:\n"
        "        app()\n"
        "    except SystemExit as end:\n"
        "        assert end.code in (0, None), (words, end.code)\n"
        "heavy = {'torch', 'numba', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_fastssl_is_light():
    code = "import sys, fastssl; assert not {'torch', 'pydantic', 'numpy'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_bare_command_shows_its_verbs():
    done = run()
    assert done.returncode == 0 and "doctor" in done.stdout and not done.stderr


def test_config_prints_values_origins_and_sentences_as_json():
    rows = json.loads(run("config", "digits", "steps=7", "--json").stdout)
    steps = next(row for row in rows if row["key"] == "steps")
    assert (steps["value"], steps["from"]) == (7, "command line")
    assert steps["what"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["train", "digits", "bach=3"], 2, "did you mean batch?"),
        (["train", "digts"], 2, "did you mean digits?"),
        (["train", "digits", "labels=41"], 2, "does not divide by 10"),
        (["list", "things"], 2, "there is no list"),
        (["list", "algorithm"], 2, "did you mean algorithms?"),
        (["trian", "digits"], 2, "Did you mean 'train'?"),
        (["train"], 2, "missing argument 'config'"),
        (["train"], 2, "fastssl train cifar10 labels=250 --out runs/a"),
        (["train", "digits", "--ouT", "x"], 2, "--out"),
        (["train", "steps=3", "digits"], 2, "digits steps=3"),
        (["convert", "digits", "out", "--size", "ten"], 2, "--size"),
        (["views", "own"], 2, "store=FOLDER"),
        (["profile", "vews"], 2, "Did you mean 'views'?"),
        (["train", "cifar10", "threads=1"], 3, "fastssl convert cifar10"),
        (["eval", "nowhere"], 3, "is not the folder of a run"),
        (["train", "digits", "device=cuda"], 5, "no such GPU"),
        (["verify", "nowhere"], 3, "nowhere"),
        (["convert", "nowhere", "out"], 3, "nowhere"),
    ],
)
def test_a_mistake_gets_two_lines_and_its_code(words, code, message, tmp_path, monkeypatch, capsys):
    import torch

    if "device=cuda" in words and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    monkeypatch.setenv("FASTSSL_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fastssl", *words])
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as end:
            main()
    finally:
        signal.signal(signal.SIGINT, before)
    printed = capsys.readouterr()
    assert end.value.code == code and not printed.out, printed.err
    lines = printed.err.strip().splitlines()
    assert len(lines) == 2 and lines[0].startswith("error: ") and lines[1].startswith("  fix: ")
    assert message in printed.err
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.name != ".lock"]
