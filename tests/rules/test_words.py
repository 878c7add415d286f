"""One vocabulary: identifiers use the field's words, and no private ones."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# What to write instead stands in the style guide of CONTRIBUTING.md.
WORDS = set(
    re.findall(
        r"\w+",
        "guess guesses guessed sure surely sureness surest judge judges judged judging figures "
        "travel trip facts guard remember settle everyone tell tells told say says picture "
        "pictures heard labelled unlabelled normalise normalised words places",
    )
)
FORMAT_KEYS = {"trip", "says"}  # of checkpoints and of records, whose form stays
NAMES = {"Loaded", "write_whole", "asked_to_stop", "p_cutoff", "uratio", "lambda_u", "util_ratio"}
# Tables that translate names of earlier versions and of other programs.
EXCEPT = {"fastssl/config/migration.py", "fastssl/config/renamed.py"}


def identifiers(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg) or (isinstance(node, ast.keyword) and node.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield from (node.asname or node.name).split(".")


def parts(name: str) -> set[str]:
    return {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def wrong_names(text: str) -> set[str]:
    found = set(identifiers(ast.parse(text)))
    found -= FORMAT_KEYS
    return {name for name in found if parts(name) & WORDS or name in NAMES}


def test_the_rule_splits_names_into_words():
    text = "def tell_of(x): pass\nclass BadPicture: pass\nmeasured = resaying = 1\nx.guesses = 2\n"
    assert wrong_names(text) == {"tell_of", "BadPicture", "guesses"}


def test_identifiers_use_the_words_of_the_field():
    wrong = {}
    for path in [*ROOT.glob("fastssl/**/*.py"), *ROOT.glob("pipelines/**/*.py")]:
        name = str(path.relative_to(ROOT))
        found = set() if name in EXCEPT else wrong_names(path.read_text())
        found |= {path.stem} if parts(path.stem) & WORDS else set()
        if found:
            wrong[name] = sorted(found)
    assert not wrong
