# make demo | test | check | docs | compat | bench | chaos | release | clean. Needs python3 >= 3.11 and make; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
SOURCES := tasks workers tests examples ops

.DEFAULT_GOAL := help
.PHONY: help demo test check docs compat bench chaos mutants release clean hashes sbom audit

help:
	@echo "make demo    a whole fleet against the mock gateway, about two minutes"
	@echo "make test    all tests, on real parts"
	@echo "make check   linters and types"
	@echo "make docs    the documentation as a site, into site/; then types what its pages show"
	@echo "make compat  tests with Debian's Prometheus, Redis, RabbitMQ and Chromium, which it installs if they are missing; npm's openai, data files and tools of PyPI"
	@echo "make bench   every figure of the README, and the public peers beside us"
	@echo "make chaos   long storms of faults; MINUTES=10 SEED=1 [STORM=limits_storm] runs one storm alone"
	@echo "make mutants small faults in a copy of the source, which the tests must notice; MODULE=tokens,epoch SEED=1 COUNT=25"
	@echo "make release builds wheel and sdist into dist/ and checks each in a bare environment; it publishes nothing"
	@echo "make hashes  writes constraints-hashed.txt: constraints.txt for the worker, with hashes"
	@echo "make sbom    writes dist/sbom.json (CycloneDX) from constraints-hashed.txt"
	@echo "make audit   looks constraints-hashed.txt up among the known vulnerabilities; error 3 where the database is not reachable"
	@echo "make clean   removes .venv and what the above made"

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "brimful needs Python 3.11 or newer (PYTHON=... make)")'
	$(PYTHON) -m venv $(VENV)

# Two stamps, so that the demo installs no test tools.
$(VENV)/.worker: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e '.[worker]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.worker

demo: $(VENV)/.worker
	$(BIN)/python examples/demo.py

# At most five tests that fail beside others run once more, alone; never those of the limits. Each of pytest's processes
# imports all test files, which takes twice as long if their bytecode may not be kept.
test: $(VENV)/.dev
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python tests/support/second_run.py "-n 6 --dist loadfile --no-loadscope-reorder" tests -m "not compat and not docs"

check: $(VENV)/.dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

# The tables that are made from the code first: settings, commands, metrics. Nothing is loaded from the network. Then what
# the pages show is typed; what the README shows is typed by `make test`.
docs: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m support.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python -m pytest -q -n 2 tests/integration/test_docs_blocks.py -m docs

compat: $(VENV)/.dev
	command -v prometheus > /dev/null && command -v redis-server > /dev/null && command -v chromium > /dev/null && \
		test -x /usr/lib/rabbitmq/bin/rabbitmq-server || \
		{ apt-get -qq update && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -qq install -y \
		--no-install-recommends prometheus redis-server chromium rabbitmq-server; } || \
		echo "make compat: cannot install prometheus, redis-server, chromium and rabbitmq-server; the tests that need them are skipped"
	$(BIN)/python -m pytest tests -m compat -rP -o faulthandler_timeout=0
	PYTHONPATH=tests $(BIN)/python -m support.mutants --changed --seed 1 --count 40 --least 50

bench: $(VENV)/.dev
	$(BIN)/python ops/bench

# With SEED, MINUTES or STORM: one storm alone, that of all faults (storm) or that over the limits (limits_storm). Without:
# ten minutes of the first, an hour of the second, and all other long tests.
chaos: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m support.$(or $(STORM),storm) --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1)
	$(if $(SEED)$(MINUTES)$(STORM),,PYTHONPATH=tests $(BIN)/python -m support.limits_storm --minutes 10 --seeds 6)
	$(if $(SEED)$(MINUTES)$(STORM),,BRIMFUL_CHAOS=long $(BIN)/python -m pytest tests -m chaos --timeout 1800 -o faulthandler_timeout=0)

# COUNT faults of each module, by SEED; `-m support.mutants --again` tries the survivors of the last run.
mutants: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m support.mutants --module "$(MODULE)" --seed $(or $(SEED),1) --count $(or $(COUNT),25)

release: $(VENV)/.dev
	$(BIN)/python ops/release.py

# Tools of their own, so that they are in no environment that they describe.
$(VENV)/tools/.installed: $(BIN)/python Makefile
	$(BIN)/python -m venv $(VENV)/tools
	$(VENV)/tools/bin/python -m pip --disable-pip-version-check -q install uv==0.13.9 cyclonedx-bom==7.5.0 pip-audit==2.10.1
	@touch $@

hashes: $(VENV)/tools/.installed
	$(VENV)/tools/bin/uv -q pip compile pyproject.toml --extra worker -c constraints.txt --generate-hashes --universal \
		--python-version 3.11 --no-header --no-annotate --no-emit-index-url -o constraints-hashed.txt

sbom: $(VENV)/tools/.installed
	mkdir -p dist
	$(VENV)/tools/bin/cyclonedx-py requirements constraints-hashed.txt --of JSON -o dist/sbom.json

audit: $(VENV)/tools/.installed
	$(BIN)/python ops/audit.py $(VENV)/tools/bin/pip-audit

clean:
	rm -rf $(VENV) site .demo .bench .mutants .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
