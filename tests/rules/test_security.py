"""Rules of security, read off the syntax tree: nothing in a file of data is ever executed."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "fastssl").rglob("*.py"), *(ROOT / "pipelines").rglob("*.py")])
FORBIDDEN = {
    "pickle.load", "pickle.loads", "cPickle.loads", "dill.load", "joblib.load", "marshal.loads",
    "yaml.load", "yaml.full_load", "yaml.unsafe_load", "yaml.load_all", "yaml.FullLoader",
    "yaml.Loader", "yaml.UnsafeLoader", "shelve.open",
    "os.system", "os.popen", "commands.getoutput", "subprocess.getoutput",
    "subprocess.getstatusoutput", "pty.spawn",
}  # fmt: skip
UNPICKLER = "pipelines/sources/unpickle.py"  # knows arrays and numbers, refuses every other name


def dotted(node: ast.AST) -> str:
    """Return `a.b.c` of an attribute, or nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def offences(text: str, name: str) -> list[str]:
    """Return what in a module's source must not be there."""
    found = []
    for node in ast.walk(ast.parse(text)):
        word = dotted(node)
        if word in FORBIDDEN or (word == "pickle.Unpickler" and name != UNPICKLER):
            found.append(word)
        if isinstance(node, ast.ImportFrom) and node.module in ("pickle", "os", "yaml"):
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found += sorted(full & (FORBIDDEN | {"pickle.Unpickler"}))
        if isinstance(node, ast.Call):
            found += call_offences(node)
    return found


def call_offences(node: ast.Call) -> list[str]:
    """Return what is wrong with a call."""
    word = dotted(node.func)
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    found = [word] if word in ("eval", "exec", "compile", "__import__") else []
    if word == "torch.load" and not truth(named.get("weights_only"), True):
        found.append("torch.load without weights_only=True")
    if word in ("np.load", "numpy.load") and truth(named.get("allow_pickle"), True):
        found.append("np.load with allow_pickle")
    if "shell" in named and not truth(named["shell"], False):
        found.append("shell=True")
    return found


def truth(node: ast.AST | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_that_could_run_what_a_file_says(path):
    assert offences(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()) == []


@pytest.mark.parametrize(
    "line",
    [
        "pickle.loads(data)",
        "from pickle import loads",
        "pickle.Unpickler(file).load()",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "yaml.load(text, Loader=yaml.SafeLoader)",
        "eval(text)",
        "exec(text)",
        "subprocess.run(words, shell=True)",
        "os.system('ls')",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_the_rule_sees_what_it_must(line):
    assert offences(line, "fastssl/any.py")


def test_the_restricted_unpickler_is_the_one_exception():
    users = [p for p in FILES if "pickle.Unpickler" in p.read_text(encoding="utf-8")]
    assert [path.relative_to(ROOT).as_posix() for path in users] == [UNPICKLER]


def test_tensorboard_is_bound_to_loopback_wherever_its_line_is_printed():
    texts = {path: path.read_text(encoding="utf-8") for path in [*FILES, *ROOT.glob("*.md")]}
    for path, text in texts.items():
        for line in re.findall(r"tensorboard --\S+.*", text):
            assert "--host localhost" in line or "--host 127.0.0.1" in line, path
            assert "--bind_all" not in line, path
