# Two commands matter: `make quickstart` trains a model, `make test` checks everything.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.complete

# Without cached bytecode every process of the tests would parse all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart test lint slow faults docs setup browser clean

quickstart: setup
	$(BIN)/fastssl train digits --out runs/quickstart --resume

test: setup browser lint
	$(BIN)/python -m pytest -n 2 -m "not slow and not faults" -rs --durations=12

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

slow: setup browser
	$(BIN)/python -m pytest -m slow --timeout=3600 -rs --durations=12

faults: setup
	$(BIN)/python -m pytest -m faults --timeout=7200 -rs tests/faults

# Every page, link and anchor must be right: a warning is an error.
docs: setup
	$(BIN)/mkdocs build --strict

setup: $(STAMP)

# A user who can't install Debian packages (the script ends with 3) goes on without what needs them.
browser:
	bash tools/debian_packages.sh browser || [ $$? = 3 ]

# FFCV compiles against numpy and OpenCV, so it comes after everything else.
$(STAMP): setup.py constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade "pip<27" "setuptools<81" wheel
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dali,export,timm,dev]"
	bash tools/debian_packages.sh && $(BIN)/pip install --quiet --constraint constraints.txt --editable ".[ffcv]" || [ $$? = 3 ]
	touch $(STAMP)

clean:
	rm -rf .venv build site *.egg-info .mypy_cache .ruff_cache .pytest_cache
