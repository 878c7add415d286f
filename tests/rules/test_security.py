"""Rules of security, checked on the syntax tree: nothing in a data file is ever executed."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "fastssl").rglob("*.py"), *(ROOT / "pipelines").rglob("*.py")])
FORBIDDEN = {
    "pickle.load", "pickle.loads", "cPickle.loads", "dill.load", "joblib.load", "marshal.loads",
    "yaml.load", "yaml.full_load", "yaml.unsafe_load", "yaml.load_all", "yaml.FullLoader",
    "yaml.Loader", "yaml.UnsafeLoader", "shelve.open", "torch.jit.load", "torch.hub.load",
    "os.system", "os.popen", "commands.getoutput", "subprocess.getoutput",
    "subprocess.getstatusoutput", "pty.spawn",
}  # fmt: skip
UNPICKLER = "pipelines/sources/unpickle.py"  # knows arrays and numbers, refuses every other name
OPENER = "pipelines/image_formats.py"  # gives Pillow a list of formats: EPS starts Ghostscript


def dotted(node: ast.AST, known: dict[str, str]) -> str:
    """Return `a.b.c` of an attribute, whatever name its module was imported under, or nothing."""
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, known)}.{node.attr}"
    return ""


def imported(tree: ast.AST) -> dict[str, str]:
    """Return what each imported name stands for."""
    known = {"np": "numpy"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return known


def offences(text: str, name: str) -> list[str]:
    """Return what in a module's source must not be there."""
    found = []
    tree = ast.parse(text)
    known = imported(tree)
    names = [*known.values(), *(dotted(node, known) for node in ast.walk(tree))]
    found += [word for word in names if word in FORBIDDEN]
    found += [word for word in names if word == "pickle.Unpickler" and name != UNPICKLER]
    found += [word for word in names if word == "PIL.Image.open" and name != OPENER]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found += call_offences(node, known)
    return found


def call_offences(node: ast.Call, known: dict[str, str]) -> list[str]:
    """Return what is wrong with a call."""
    word = dotted(node.func, known).removeprefix("builtins.")
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    found = [word] if word in ("eval", "exec", "compile", "__import__") else []
    if word == "torch.load" and not truth(named.get("weights_only"), True):
        found.append("torch.load without weights_only=True")
    if word == "numpy.load" and not truth(named.get("allow_pickle"), False, absent=True):
        found.append("np.load with allow_pickle")
    if not truth(named.get("shell"), False, absent=True):
        found.append("shell=True")
    return found


def truth(node: ast.AST | None, value: bool, absent: bool = False) -> bool:
    """Return True if an argument is plainly `value`; return `absent` if it is not given."""
    return absent if node is None else isinstance(node, ast.Constant) and node.value is value


def test_nothing_runs_the_content_of_a_file():
    names = {path.relative_to(ROOT).as_posix(): path for path in FILES}
    found = {name: offences(path.read_text(encoding="utf-8"), name) for name, path in names.items()}
    assert not {name: wrong for name, wrong in found.items() if wrong}


def test_the_rule_finds_what_is_forbidden():
    for line in (
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
        "np.load(path, allow_pickle=trusted)",
        "import pickle as p\np.loads(data)",
        "from torch import load\nload(path)",
        "import torch as t\nt.load(path)",
        "from subprocess import getoutput",
        "from joblib import load",
        "import builtins\nbuiltins.eval(text)",
        "from PIL import Image\nImage.open(path)",
        "import PIL.Image\nPIL.Image.open(path)",
    ):
        assert offences(line, "fastssl/any.py"), line


def test_the_restricted_unpickler_is_the_one_exception():
    users = [p for p in FILES if "pickle.Unpickler" in p.read_text(encoding="utf-8")]
    assert [path.relative_to(ROOT).as_posix() for path in users] == [UNPICKLER]


def test_tensorboard_is_bound_to_loopback_wherever_its_line_is_printed():
    texts = {path: path.read_text(encoding="utf-8") for path in [*FILES, *ROOT.glob("*.md")]}
    for path, text in texts.items():
        for line in re.findall(r"tensorboard --\S+.*", text):
            assert "--host localhost" in line or "--host 127.0.0.1" in line, path
            assert "--bind_all" not in line, path
