# Two commands do all the set-up: `make doctor` and `make test`. Everything lands in .venv.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: doctor install system test versions check check-new docs ward bench gpu clean

doctor: $(INSTALLED) ## install, then examine this machine
	$(BIN)/ddoctor doctor

install: $(INSTALLED) ## the virtual environment with everything for development

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

system: ## the system packages that tests use: tests that lack theirs are skipped, and say so
	bash tests/system-packages.sh

# These tests measure no time of ranks, so they share the cores.
SHARING := $(addprefix tests/,analysis checks collect commands evidence forecast knowledge launch \
	memory_sweep memory_tracking proc reading report script tools $(addsuffix .py,$(addprefix test_, \
	cli evidence_producers layers manners packaging random_ends scale scenarios words)))

test: $(INSTALLED) system ## the tests
	$(BIN)/python -m pytest --numprocesses=logical --dist=worksteal $(SHARING)
	$(BIN)/python -m pytest $(addprefix --ignore=,$(SHARING))

versions: $(INSTALLED) system ## the tests that depend on torch, with old and new torch and Python
	$(BIN)/python -m tox run

ward: $(INSTALLED) system ## sick and sound clusters: what is told of them, over real networks; SEED=n: scripts drawn from it
	$(BIN)/python -m $(if $(SEED),tests.ward.drawn $(SEED),pytest -m ward)

check: $(INSTALLED) ## linter, formatter, types, tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(MAKE) test

check-new: $(INSTALLED) ## begin a check and its test: make check-new NAME=some-cause
	$(BIN)/python -m tools.check_new $(NAME)
	$(BIN)/python -m tools.docs

docs: $(INSTALLED) ## write docs/evidence.md and docs/causes.md from the code
	$(BIN)/python -m tools.docs

bench: $(INSTALLED) ## the claims about speed, measured side by side
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.allreduce
	$(BIN)/python -m benchmarks.overhead --peers
	$(BIN)/python -m benchmarks.attach
	$(BIN)/python -m benchmarks.attach_verdict
	$(BIN)/python -m benchmarks.attach_scale
	$(BIN)/python -m benchmarks.link
	$(BIN)/python -m benchmarks.pairing
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.whole_run_scale
	$(BIN)/python -m benchmarks.forecast
	$(BIN)/python -m benchmarks.speeds
	$(BIN)/python -m benchmarks.headroom
	$(BIN)/python -m benchmarks.reading
	$(BIN)/python -m benchmarks.review

gpu: $(INSTALLED) ## everything that needs a GPU; writes docs/measurements/
	$(BIN)/python -m benchmarks.gpu

clean:
	rm -rf .venv build dist *.egg-info
