# Two commands: `make run` opens the playground, `make test` runs the tests of every push. CI runs
# `make test-ci` as well. After a change of the page run `make test-page` too, and before a release
# `make test-all`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8000
# Files side by side: half of a test's time is spent waiting for a compiler, a page or an engine, so
# four keep two cores busy. More would crowd one GPU, or the cores that stand in for one.
PYTEST := $(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder
# Each of the many processes that tests start reads compiled modules, where an environment forbids them too.
export PYTHONDONTWRITEBYTECODE :=
SWIFTSHADER := $(wildcard /usr/lib/chromium/vk_swiftshader_icd.json)

.PHONY: run site smoke test test-ci collect test-page test-all test-late test-slow soak faults fuzz races devices mutants
.PHONY: lint lint-python lint-page parity bench accuracy screenshots lock audit sbom clean

run: $(VENV)/run.stamp $(VENV)/device.stamp
	$(BIN)/tokenglass serve --port $(PORT) $(if $(MODEL),--model "$(MODEL)")

# The bundled model as a static site, which any file server hosts: python -m http.server -d site
SITE ?= site

site: $(VENV)/run.stamp
	$(BIN)/tokenglass export $(SITE) --model "$(or $(MODEL),tale)"

# Before every commit: imports, doors, golden ids, one case of each kind of kernel, one of the page.
smoke: $(VENV)/test.stamp
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m "smoke and not slow"

QUICK := -m "not slow and not page and not ci"

# At most 15 minutes on two cores without a GPU, also where every kernel has to be compiled.
test: $(VENV)/test.stamp
	$(MAKE) --no-print-directory --jobs 2 lint collect
	$(BIN)/python -m app.cli.software_device --chromium
	$(PYTEST) $(QUICK)

# What CI runs after `make test`: more cases of what computes on a GPU, the tests of the page that are
# marked `quick`, and every op and architecture on the second driver.
test-ci: $(VENV)/test.stamp
	$(BIN)/python -m app.cli.software_device --chromium
	$(PYTEST) -m "ci and not slow"
	$(MAKE) --no-print-directory parity PARITY="$(OPS)"

# Compile every test once, with its assertions rewritten, on the core that mypy leaves idle: four processes
# that collect them together would each do it, and later processes need not.
collect: $(VENV)/test.stamp
	@mkdir -p build
	@$(BIN)/python -m pytest --collect-only -qq $(QUICK) > build/collected.txt || { cat build/collected.txt; exit 1; }

# All tests of the page. CI runs those marked `quick`: they compare the page with the engine or give it
# hostile input, and there are one or two for each other part.
test-page: $(VENV)/test.stamp
	$(BIN)/python -m app.cli.software_device --chromium
	$(PYTEST) -m "not slow" e2e

# The same numbers on a second, unlike Vulkan driver: the one in Debian's chromium packages. All that
# compare any; CI takes every op and every architecture.
OPS := $(wildcard tests/gpu/ops/test_op_*.py) tests/gpu/models/test_models.py
PARITY ?= tests

parity: $(VENV)/test.stamp
ifeq ($(SWIFTSHADER),)
	@echo "The second Vulkan driver was not found, so nothing was compared on it." \
		"Debian's chromium-headless-shell brings it (SwiftShader)." >&2
	@test -z "$(CI)"  # elsewhere the message is enough
else
	VK_DRIVER_FILES=$(SWIFTSHADER) VK_ICD_FILENAMES=$(SWIFTSHADER) \
		$(PYTEST) -m "parity and not slow" $(PARITY)
endif

# What a release must pass: the tests of CI, all tests of the page, every comparison on the second driver,
# the slow tests, the search for races, and devices that are not here.
test-all: test
	$(MAKE) --no-print-directory test-ci
	$(MAKE) --no-print-directory test-page
	$(MAKE) --no-print-directory parity
	$(MAKE) --no-print-directory test-slow
	$(MAKE) --no-print-directory races
	$(MAKE) --no-print-directory devices

# 32 clients that come, go, stall and vanish for five minutes; `make test` has twelve seconds of them.
soak: $(VENV)/test.stamp
	$(BIN)/python -m pytest tests/soak --soak-seconds 300 --timeout 600

# The tests named in docs/reliability.md, at least one for each thing that can break.
faults: $(VENV)/test.stamp
	$(PYTEST) -v $$($(BIN)/python -m tests.test_reliability)

# Requests, messages and files with random changes, many more of them than in `make test`.
fuzz: $(VENV)/test.stamp
	$(PYTEST) -m slow --timeout 3600 tests/app/test_schema_fuzz.py tests/gpu/test_fuzz.py

# Every op with its memory accesses traced, and with the lanes of its workgroups in other orders.
races: $(VENV)/test.stamp
	$(PYTEST) -m "not slow" tests/gpu/ops --races
	$(PYTEST) -m "not slow" tests/gpu/ops --lane-orders

# Ops and models on devices that are not here (tests/gpu/other_devices.py): other kinds, with division and
# exponentials as inexact as WGSL allows, and memory that holds what others left in it.
SAMPLER := $(wildcard tests/gpu/ops/test_sampler*.py) tests/gpu/ops/test_logit_sort_keys.py
DEVICES := $(PYTEST) -m "not slow" $(OPS) $(SAMPLER)

devices: $(VENV)/test.stamp
	$(DEVICES) --pose discrete --inexact up --leftovers nan
	$(DEVICES) --pose integrated --inexact mixed --leftovers stale
	$(DEVICES) --pose phone --inexact down --leftovers inf

# Break one thing at a time and see whether a test notices: shaders and page by hand, Python by mutmut
# (`mutmut results` and `mutmut show` say what no test noticed).
mutants: $(VENV)/test.stamp
	$(BIN)/python -m pytest -m slow tests/test_mutants.py
	$(BIN)/mutmut run

# Every frame and message of the page late, as on a busy machine, and no second try.
test-late: $(VENV)/test.stamp
	$(PYTEST) -m "not slow" e2e --late 120

test-slow: $(VENV)/test.stamp
	$(BIN)/python -m pytest -m slow

lint: lint-page lint-python

lint-python: $(VENV)/test.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The page's code: types and faults. Node only checks; what the browser loads needs no build.
NODE := tests/js/node_modules
NODE_RUNS := $(shell node -e 'process.exit(parseInt(process.versions.node) < 20)' 2>&1 && npm --version)

lint-page: $(VENV)/test.stamp
ifeq ($(NODE_RUNS),)
	@echo "The page's code was not checked: that needs Node.js 20 or newer and npm." >&2
	@test -z "$(CI)"  # elsewhere the message is enough
else
	@$(MAKE) --no-print-directory $(NODE)/install.stamp
	mkdir -p build/js && $(BIN)/python -m tests.js.schema_types > build/js/schemas.d.ts
	$(NODE)/.bin/tsc --project tests/js
	$(NODE)/.bin/eslint --config tests/js/eslint.config.js --max-warnings 0 static/js
endif

# About nine minutes on two cores, with the kernels that a first start finds fastest. Each run adds a
# line of JSON; the tables of docs/benchmarks.md are made of them.
BENCH := $(BIN)/python -m gpu.bench --floor --append build/bench.jsonl
SERVING := $(BIN)/python -m gpu.bench.serving --append build/bench.jsonl

bench: $(VENV)/test.stamp
	mkdir -p build && rm -f build/bench.jsonl
	$(BIN)/tokenglass devices --probe
	for dtype in f16 q8 q4; do \
		$(BENCH) --model app/tale/model --dtype $$dtype --repeat 15 --capture --kl --peer torch \
			--context 128,512,1000 && \
		$(BENCH) --shape smol135 --dtype $$dtype --tokens 16 --repeat 15 --peer torch \
			--context 128,1024,4096,8192 || exit 1; \
	done
	$(SERVING) --model app/tale/model --spec-type ngram --repeat 7 \
		--peer llama.cpp --peer llama-server --peer llama-cpp-python --peer transformers
	$(SERVING) --shape tiny --long 4000 --beside 4
	$(BIN)/python -m gpu.bench.table build/bench.jsonl docs/benchmarks.md

# Every architecture in every storage type beside transformers: the table of docs/models.md.
accuracy: $(VENV)/test.stamp
	$(BIN)/python -m tests.accuracy docs/models.md

# The pictures in docs/, of SmolLM2 with a fixed seed.
screenshots: $(VENV)/test.stamp
	$(BIN)/python -m app.cli.software_device --chromium
	$(BIN)/python -m e2e.screenshots docs

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV) || { \
		echo "could not make $(VENV): install Python 3.11 or newer and its venv module," \
		     "on Debian and Ubuntu with: apt-get install python3-venv"; exit 1; }

# What users run: the versions of requirements.lock, each checked against its hash.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

$(VENV)/run.stamp: pyproject.toml requirements.lock | $(BIN)/python
	@$(PIP) --require-hashes --requirement requirements.lock 2> $(VENV)/pip.txt || { \
		cat $(VENV)/pip.txt >&2; grep -q "No matching distribution" $(VENV)/pip.txt && \
		echo "The package index lacks a version that requirements.lock names," \
			"so the newest that pyproject.toml allows are installed." >&2; }
	$(PIP) --editable .
	@touch $@

# Once: it takes a second to look for a device, and a server without one names the packages to install.
$(VENV)/device.stamp: $(VENV)/run.stamp
	$(BIN)/python -m app.cli.software_device
	@touch $@

# torch first and pinned, so that nothing else pulls in a larger build of it.
$(VENV)/test.stamp: $(VENV)/run.stamp
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[test]'
	@touch $@

# Dependencies: `make lock` writes the newest versions that pyproject.toml allows, `make audit` asks
# PyPI and npm for known vulnerabilities in what users run, `make sbom` writes a list of it in CycloneDX.
AUDIT := $(VENV)/audit/bin

$(AUDIT)/python: | $(BIN)/python
	$(BIN)/python -m venv $(VENV)/audit
	$(AUDIT)/python -m pip install --quiet --disable-pip-version-check uv pip-audit cyclonedx-bom

lock: $(AUDIT)/python
	$(AUDIT)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-annotate --no-header \
		--no-emit-index-url --output-file requirements.lock pyproject.toml

audit: $(AUDIT)/python
	$(AUDIT)/pip-audit --requirement requirements.lock --disable-pip
	cd tests/js && npm audit --package-lock-only

sbom: $(AUDIT)/python
	@mkdir -p build
	$(AUDIT)/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml \
		--output-reproducible --output-file build/sbom.json
	cd tests/js && npm sbom --package-lock-only --omit dev --sbom-format cyclonedx > ../../build/sbom-page.json

$(NODE)/install.stamp: tests/js/package-lock.json
	cd tests/js && npm ci --no-audit --no-fund
	@touch $@

clean:
	rm -rf $(VENV) $(NODE) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache test-results
