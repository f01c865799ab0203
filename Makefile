# Beside each target `make` prints the plain command: use that where there is no make.

.DEFAULT_GOAL := help
SHELL := /bin/sh
.DELETE_ON_ERROR:

PYTHON  ?= python3
VENV    ?= .venv
PROFILE ?= auto
ARGS    ?=
FOLDER  ?=
REPO    ?=
REF     ?=
PINNED  ?=
LOWEST  ?=

export REPO REF FOLDER  # a recipe takes them as "$$REPO": no shell reads what they hold

PY      := $(VENV)/bin/python
LEAST   := $(if $(LOWEST),--constraint lowest.txt)
EXACT   := $(if $(PINNED),--constraint constraints.txt,$(LEAST))
KIND    := $(if $(PINNED),pinned,$(if $(LOWEST),lowest,ranges))
READY   := $(VENV)/.ready-$(KIND)
TOOLS   := $(VENV)/.ready-tools-$(KIND)
NUMBERS := $(foreach path,$(wildcard notebooks/[0-9][0-9]_*.ipynb),$(firstword $(subst _, ,$(notdir $(path)))))

.PHONY: help run all test test-release lab student slides data html sync badges check publish reproduce gpu-report serve clean $(NUMBERS)

help: ## show this | make
	@awk 'BEGIN { FS = " ## | [|] "; tty = system("test -t 1") == 0; \
	    printf "\nKarpathy'"'"'s GPT with a KV cache, in notebooks.\n\n" } \
	  /^[a-z0-9$$()A-Z-]+:.* ## / { name = $$1; sub(/:.*/, "", name); if (name ~ /NUMBERS/) name = "03"; \
	    printf (tty ? "  \033[1;36m%-12s\033[0m" : "  %-12s"), name; \
	    printf " %-46s", $$2; printf (tty ? "\033[2m%s\033[0m\n" : "%s\n"), $$3 }' $(MAKEFILE_LIST)
	@printf '\n  PROFILE=%s (auto, smoke, laptop, full, gpu)  VENV=%s  PYTHON=%s  PINNED=1 (the exact tested versions)\n' \
	  '$(PROFILE)' '$(VENV)' '$(PYTHON)'
	@printf '  ARGS="-p seed=7" adds to the command; plain commands want the packages of requirements.txt.\n\n'

run: $(READY) ## run 00 to 07 and 12, and render them | python -m nanogpt run
	$(PY) -m nanogpt run --profile $(PROFILE) $(ARGS)

all: $(READY) ## run all notebooks | python -m nanogpt run --all
	$(PY) -m nanogpt run --all --profile $(PROFILE) $(ARGS)

$(NUMBERS): $(READY) ## run one of them, by its number | python -m nanogpt run 03
	$(PY) -m nanogpt run $@ --profile $(PROFILE) $(ARGS)

test: $(TOOLS) ## test the code and every notebook | python -m pytest
	$(PY) -m pytest $(ARGS)

test-release: $(TOOLS) ## what takes long: kernels, browsers, clients | python -m pytest -m release
	$(PY) -m pytest -m release $(ARGS)

lab: $(READY) ## open the notebooks in JupyterLab | jupyter lab notebooks
	$(VENV)/bin/jupyter lab notebooks $(ARGS)

student: $(READY) ## the notebooks without their solutions | python -m nanogpt student
	$(PY) -m nanogpt student $(ARGS)

slides: $(READY) ## the slides of notebooks/teaching | python -m nanogpt slides
	$(PY) -m nanogpt slides $(ARGS)

data: $(READY) ## fetch the corpus, or say which one is used | python -c "import nanogpt; print(nanogpt.load_corpus())"
	@PYTHONIOENCODING=:replace $(PY) -c "from nanogpt.cli.common import exit_code; from nanogpt import load_corpus; \
	raise SystemExit(exit_code(lambda: print((corpus := load_corpus()).banner or corpus)))"

html: $(READY) ## render the newest run again, or FOLDER=... | python -m nanogpt site
	$(PY) -m nanogpt site $${FOLDER:+"$$FOLDER"}

sync: $(READY) ## write the package's code into the notebooks | python -m nanogpt sync
	$(PY) -m nanogpt sync

badges: $(READY) ## set the address: REPO=owner/name [REF=main] | python -m nanogpt sync --repo owner/name
	@test -n "$$REPO" || { echo "say which: make badges REPO=owner/name"; exit 2; }
	$(PY) -m nanogpt sync --repo="$$REPO" $${REF:+--ref="$$REF"}
	@test ! -d outputs/published || $(PY) -m nanogpt site outputs/published

check: $(TOOLS) ## are notebooks in step, is the code clean? | python -m nanogpt sync --check && ruff check
	$(PY) -m nanogpt sync --check
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

publish: $(TOOLS) ## run all into outputs/published, or nothing | python -m nanogpt run --publish
	$(PY) -m nanogpt run --publish $(ARGS)

reproduce: $(READY) ## run all: is every output the published one? | python -m nanogpt run --reproduce
	$(PY) -m nanogpt run --reproduce $(ARGS)

serve: $(READY) ## answer over HTTP, as OpenAI's completions | python -m nanogpt serve
	$(PY) -m nanogpt serve $(ARGS)

gpu-report: $(TOOLS) ## on a GPU: 12 minutes into outputs/gpu/NAME | python -m nanogpt bench gpu
	$(PY) -m nanogpt bench gpu $(ARGS)

clean: ## remove outputs/run and caches, nothing else | rm -rf outputs/run
	@for path in outputs/run .pytest_cache .ruff_cache .mypy_cache .hypothesis \
	    $$(find nanogpt tests notebooks -name __pycache__ -o -name .ipynb_checkpoints); do \
	  if [ -e "$$path" ]; then rm -rf "$$path" && echo "removed $$path"; fi; done

# The stamps come last, so a half-finished installation does not count; new requirements make them old.
$(READY): requirements.txt constraints.txt lowest.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12 …")'
	@test -z "$(PINNED)" || $(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "PINNED=1 needs Python 3.11 to 3.13: make PYTHON=python3.13 …, or leave PINNED out")'
	@rm -f $(VENV)/.ready-*
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --disable-pip-version-check --quiet --requirement requirements.txt $(EXACT)
	@touch $@

$(TOOLS): $(READY) pyproject.toml
	$(PY) -m pip install --disable-pip-version-check --quiet --editable '.[test]' $(LEAST)
	@touch $@
