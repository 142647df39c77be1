# Two commands do everything on a fresh machine: `make run` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test clean

run: $(VENV)/.ready
	$(BIN)/splashlite chat

# The exact tests need reference BLAS, where results do not depend on how many rows are computed together; the rest runs
# with the BLAS that people use, one thread per worker.
test: $(VENV)/.ready-test
	SPLASHLITE_BLAS=reference $(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "exact and not metal"
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not exact and not metal"

$(VENV)/.ready: pyproject.toml
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=24.1'
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.ready-test: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build dist
