# Two commands matter: `make quickstart` trains a model, `make test` checks everything.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.complete

# Without cached bytecode every process of the tests would parse all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart test lint slow faults setup clean

quickstart: setup
	$(BIN)/fastssl train digits --out runs/quickstart --resume

test: setup lint
	$(BIN)/python -m pytest -n 2 -m "not slow and not faults" --durations=12

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

slow: setup
	$(BIN)/python -m pytest -m slow --durations=12

faults: setup
	$(BIN)/python -m pytest -m faults tests/faults

setup: $(STAMP)

# FFCV compiles against numpy and OpenCV, so it comes after everything else.
$(STAMP): setup.py constraints.txt tools/debian_packages.sh
	bash tools/debian_packages.sh
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade "pip<27" "setuptools<81" wheel
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dali,export,dev]"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[ffcv]"
	touch $(STAMP)

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache
