# Two commands matter: `make quickstart` trains a model, `make test` checks everything.
PYTHON ?= python3
BIN := .venv/bin
PLAIN := .venv/.plain
COMPLETE := .venv/.complete
INSTALL := $(BIN)/pip install --quiet --constraint constraints.txt --editable

# Without cached bytecode every process of the tests would parse all modules again.
unexport PYTHONDONTWRITEBYTECODE
# Threads of torch that wait spin by default: fastest alone, but here they take the cores from the
# tests of the other process.
test slow faults: export OMP_WAIT_POLICY = passive

.PHONY: quickstart test lint slow faults docs setup browser clean

quickstart: $(PLAIN)
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

setup: $(COMPLETE)

# A user who can't install Debian packages (the script ends with 3) goes on without what needs them.
browser:
	bash tools/debian_packages.sh browser || [ $$? = 3 ]

# The package alone: no compiler and no Debian package is needed.
$(PLAIN): setup.py constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade "pip<27" "setuptools<81" wheel
	$(INSTALL) .
	touch $@

# In the same .venv: the extras and the development tools. FFCV compiles against numpy and OpenCV,
# so it comes after everything else.
$(COMPLETE): $(PLAIN)
	$(INSTALL) ".[dali,export,timm,dev]"
	bash tools/debian_packages.sh && $(INSTALL) ".[ffcv]" || [ $$? = 3 ]
	touch $@

clean:
	rm -rf .venv build site *.egg-info .mypy_cache .ruff_cache .pytest_cache
