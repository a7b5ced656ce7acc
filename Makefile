# Two commands: `make book` renders the book, `make test` checks everything. Both set up
# what they need in .venv. `make quick` checks what changed since the last commit.
PYTHON ?= python3
export PIP_FLAGS ?=
PORT ?= 8000
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
WORKERS ?= 2
SINCE ?= HEAD

# Names the step before it runs, and again with its seconds, or if it fails.
step = @echo "== $(1)" && start=$$(date +%s) && { $(2); } && echo "== $(1): $$(($$(date +%s) - start)) s" || { echo "FAILED: $(1)" >&2; exit 1; }

.PHONY: help book serve quick test unit nbval faults colab release build browser lint refresh check address parity bench clean

help:  ## print the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

.venv/made:
	$(call step,Python 3.11 or newer,$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, found " + sys.version.split()[0] + ": make PYTHON=/path/to/python3")')
	$(call step,virtual environment in .venv (Debian and Ubuntu need the package python3-venv),$(PYTHON) -m venv .venv)
	@touch $@

.venv/book: .venv/made book/requirements.txt constraints.txt
	$(call step,install what rendering needs,$(BIN)/python -m pip install --quiet $(PIP_FLAGS) -c constraints.txt -r book/requirements.txt)
	@touch $@

.venv/all: .venv/made requirements.txt book/requirements.txt constraints.txt pyproject.toml
	$(call step,install what the tests need,$(BIN)/python -m pip install --quiet $(PIP_FLAGS) -c constraints.txt -r requirements.txt)
	$(call step,install posenc_lib,$(BIN)/python -m pip install --quiet --no-deps --editable .)
	@touch .venv/book $@

book: .venv/book  ## render the book (needs no torch)
	$(call step,render the book,rm -rf _build/html && $(BIN)/jupyter-book build . --all --quiet)
	@echo "Open $(CURDIR)/_build/html/index.html"

serve: book  ## render the book and show it on localhost
	@echo "Open http://localhost:$(PORT)/ (stop with Ctrl+C)"
	@$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

quick: .venv/all  ## lint, tests and notebooks of what changed: make quick SINCE=HEAD
	@$(BIN)/python book/tools/quick.py --since $(SINCE)

test: lint unit nbval faults colab release build browser  ## run everything that must pass
	@echo "== all steps passed"

lint: .venv/all  ## format, types, workflows, metadata
	$(call step,ruff check,$(BIN)/ruff check .)
	$(call step,ruff format,$(BIN)/ruff format --check .)
	$(call step,types,$(BIN)/mypy)
	$(call step,workflow security,$(BIN)/zizmor --offline --quiet .github)
	$(call step,workflow schema,$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml)
	$(call step,update schema,$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml)

unit: .venv/all  ## unit tests of the library, the figures and the tools
	$(call step,unit tests,$(PYTEST) -q -n $(WORKERS) --durations 20)

nbval: .venv/all  ## run every notebook again and compare with its stored outputs
	$(call step,notebooks,$(PYTEST) -q --nbval --nbval-current-env --nbval-cell-timeout 120 -n $(WORKERS) --dist loadfile notebooks)

faults: .venv/all  ## seed faults, reverse verdicts, follow CONTRIBUTING
	$(call step,seeded faults,$(PYTEST) -q -n $(WORKERS) tests/test_faults.py tests/test_ledger.py tests/test_contributing.py -m slow)

colab: .venv/all  ## one notebook alone in an environment like Colab's
	$(call step,an environment like Colab's,$(PYTEST) -q tests/test_colab.py -m slow)

release: .venv/all  ## wheel and sdist, and the wheel alone in an empty environment
	$(call step,wheel and sdist,$(PYTEST) -q tests/test_release.py -m slow)

build: .venv/book  ## render the book with every warning an error
	$(call step,strict build,rm -rf _build/html && $(BIN)/jupyter-book build . --all -W -n --keep-going --quiet)

browser: .venv/all build  ## look at every page in a browser
	$(call step,pages,$(PYTEST) -q -n $(WORKERS) -m site tests/test_build.py tests/browser)

refresh: .venv/all  ## run the notebooks, store their outputs, write the generated pages
	$(call step,notebooks,$(BIN)/python book/tools/refresh.py)
	$(call step,generated pages,$(BIN)/python book/tools/pages.py)

_build/peers/made: tests/parity/requirements.txt tests/parity/no-deps.txt
	$(call step,an environment with the peers,$(PYTHON) -m venv _build/peers)
	$(call step,install the peers,_build/peers/bin/python -m pip install --quiet $(PIP_FLAGS) -r tests/parity/requirements.txt)
	$(call step,install the peers that would bring another torch,_build/peers/bin/python -m pip install --quiet $(PIP_FLAGS) --no-deps -r tests/parity/no-deps.txt)
	@touch $@

parity: _build/peers/made  ## compare with transformers, x-transformers and timm as installed (not part of `make test`)
	$(call step,parity with the peers,_build/peers/bin/python -m pytest -q --confcutdir tests/parity tests/parity)

bench:  ## time the library beside memory and beside its peers (not part of `make test`)
	@$(MAKE) --no-print-directory --jobs 2 .venv/all _build/peers/made
	$(call step,benchmarks,_build/peers/bin/python -m benchmarks --book $(BIN)/python --out posenc_lib/lab/data/performance.json)
	@echo "Now make refresh puts the numbers into the book."

address: .venv/made  ## make address URL=https://github.com/NAME/REPOSITORY: set the repository's address everywhere
	$(call step,address,$(BIN)/python book/tools/address.py "$(URL)")

clean:  ## remove the built book and the environment
	rm -rf _build .venv
