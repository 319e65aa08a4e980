# Everything runs in .venv, made on first use from the pins in constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: run test slow check format clean

run: $(READY)
	$(BIN)/coterie compare

test: check
	$(BIN)/python -m pytest -n auto

slow: $(READY)
	$(BIN)/python -m pytest -n auto -m slow

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[experiments,service,rivals,ray,telemetry,dev]'
	# The tests compare with obp's estimators, which need NumPy alone; the package would bring PyTorch.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps obp
	touch $(READY)

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
