# make demo: everything from nothing to a model that has learned. make test: everything a change must pass. make docs: site/.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH ?= torch==2.13.0
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export OMP_WAIT_POLICY = passive

.PHONY: demo test soak lint docs install clean

demo: $(STAMP)
	$(BIN)/reef demo --yes

test: lint
	$(BIN)/python -m pytest -m "not soak" -n 2 --dist worksteal

soak: $(STAMP)
	REEF_SOAK=1 $(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file .mkdocs.yml
	@echo "site/index.html is the first page; with search: $(BIN)/python -m http.server -d site"

install: $(STAMP)

# torch stands on the same command line as everything that needs it, so that pip keeps the CPU build where one is on offer.
$(STAMP): pyproject.toml constraints.txt
	@echo "installing Reef with PyTorch into $(VENV): some minutes, without a word from pip"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt $(TORCH) --editable '.[torch]' --group dev
	touch $(STAMP)

clean:
	rm -rf $(VENV)
