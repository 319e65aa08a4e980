# Everything runs in .venv, made on first use from the pins in constraints.txt. `make run` installs only what it needs.
export PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.everything
READY_TO_RUN := .venv/.experiments
PINS := pyproject.toml constraints.txt

.PHONY: run test slow check format docs wheel clean

run: $(READY_TO_RUN)
	$(BIN)/coterie compare

test: check
	@# A file goes to one process: two would compile the same loops, and start the same servers, side by side.
	$(BIN)/python -m pytest -n auto --dist loadfile

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

$(READY_TO_RUN): $(PINS)
	@.ci/install 'what the experiments need' --editable '.[experiments]'
	@touch $@

$(READY): $(PINS)
	@.ci/install 'all that the tests need' --editable '.[experiments,service,postgres,rivals,ray,gym,mlflow,telemetry]' --group dev --group docs
	@# The tests compare with obp. It would bring PyTorch, which no part that they use needs.
	@.ci/install 'estimators to compare with' --no-deps obp
	@touch $@ $(READY_TO_RUN)

docs: $(READY)
	@.ci/docs

wheel: $(READY_TO_RUN)
	@.ci/smoke

clean:
	rm -rf .venv .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
