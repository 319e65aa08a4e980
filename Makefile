# Everything runs in .venv, which is made on first use from the pins in constraints.txt. `make run` installs only what it needs.
export PYTHON ?= python3
# The tests start hundreds of processes. Without bytecode, each would first compile all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
READY := .venv/.everything
READY_TO_RUN := .venv/.experiments
PINS := pyproject.toml constraints.txt
TESTS ?= tests
FORGETTING := hierarchical,hierarchical:half_life=None,hierarchical:half_life=10,cab,cab:half_life=10,linucb-multiple,linucb-multiple:half_life=10
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
INTERPRETED ?= tests/models tests/policies

.PHONY: install run test tests slow coverage check format docs numbers wheel versions clean

run: $(READY_TO_RUN)
	$(BIN)/coterie compare

install: $(READY)

test: check tests

tests: $(READY)
	$(BIN)/python -m pytest -n auto

slow: $(READY)
	$(BIN)/python -m pytest -n auto -m slow
	$(BIN)/python -m pytest -n auto -m 'hypothesis and not slow' --hypothesis-profile=search

# Compiled loops are invisible to the tracer, so the tests of models and policies run a second time with the compiler off.
# Tests that need the compiler are skipped there; the two files left out are about the compiler itself.
coverage: $(READY)
	$(BIN)/python -m pytest -n auto --cov=coterie --cov-report= $(TESTS)
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -n auto --cov=coterie --cov-append --cov-report= \
		-W 'ignore:overflow encountered:RuntimeWarning' \
		--ignore=tests/models/test_cache.py --ignore=tests/models/test_registers.py $(INTERPRETED)
	$(BIN)/python -m coverage html --quiet --directory build/coverage
	$(BIN)/python -m coverage report --skip-covered --skip-empty
	@echo "Line by line: build/coverage/index.html"

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
	@.ci/install 'what the tests need' --editable '.[experiments,service,postgres,rivals,gpu,gym,mlflow,telemetry]' --group dev --group docs
	@# The tests compare with obp. Without --no-deps it would install PyTorch, which these tests do not need.
	@.ci/install 'estimators to compare with' --no-deps obp
	@touch $@ $(READY_TO_RUN)

docs: $(READY)
	@.ci/docs

# What the pages show: first what is kept in results/, then the marks of all pages, then the outputs of their blocks.
numbers: $(READY)
	$(BIN)/coterie compare --out out/compare
	mkdir -p results/compare && cp out/compare/result.json out/compare/curves.svg results/compare
	for world in drifting music-and-news; do \
		$(BIN)/coterie compare $$world --policies $(FORGETTING) --rounds 10000 --runs 3 --out out/half-life-$$world && \
		mkdir -p results/half-life-$$world && cp out/half-life-$$world/result.json results/half-life-$$world || exit 1; done
	$(BIN)/python docs/made.py
	$(BIN)/python docs/blocks.py README.md docs/*.md

wheel: $(READY_TO_RUN)
	@.ci/smoke

# The same with the oldest and with the newest versions that pyproject.toml allows, the newest with each Python that is here.
versions: $(READY_TO_RUN)
	@.ci/smoke lowest-direct
	@for python in $(PYTHONS); do if $$python --version >/dev/null 2>&1; then .ci/smoke highest $$python || exit 1; \
		else echo "Not tried, because it is not here: $$python"; fi; done

clean:
	rm -rf .venv .cache .coverage build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
