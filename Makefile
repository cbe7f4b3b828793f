# make learn · make quick · make test · make lint · make grade · make tour · make bench · make sanitize
# make newest · make constraints · make handout · make site · make lite · make size
# Everything lies in .venv/, in the versions of constraints/; a second call installs nothing.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

# A PYTHON= that somebody gives decides; else the one that .venv/ was made of, where there is one.
INSTALL := $(if $(filter file,$(origin PYTHON)),$(or $(wildcard $(BIN)/python),$(PYTHON)),$(PYTHON)) \
	install.py --venv $(VENV)

.PHONY: learn quick test lint grade tour bench sanitize newest handout site lite pyodide lite-test constraints size lessons dev site-packages clean
.DEFAULT_GOAL := learn

# An activated foreign environment makes IPython warn, which breaks tests/test_microscope.py.
unexport VIRTUAL_ENV

learn: lessons
	@$(BIN)/fa-numba doctor
	@$(BIN)/fa-numba learn

# Hundreds of processes import the same files: compiled once, whatever the environment says.
test quick: export PYTHONDONTWRITEBYTECODE =
test: lint
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

quick: lint
	$(BIN)/python -m pytest --quick -n auto --maxprocesses 8 --dist worksteal

lint: dev
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

# Exit status 0 whatever is passed: that is for `fa-numba check` to say. pytest's 1 is "some failed".
grade: lessons
	@$(BIN)/python -m pytest exercises/ || test $$? -eq 1

tour: lessons
	@$(BIN)/fa-numba tour

bench: dev
	$(BIN)/python -m benchmarks

# On a GPU: the small cases, and some masks, under each tool of compute-sanitizer.
sanitize: dev
	sh tests/sanitize.sh $(BIN)/python 3600 "small or fp8 or tf32x3 or documents or (score and mask)"

# For a class: the workbook without solutions. docs/instructors.md says the rest.
handout: lessons
	@$(BIN)/fa-numba handout handout --zip handout.zip

# The lessons with their outputs, the documents and the functions, into build/site/html.
site: site-packages
	@$(BIN)/python docs/site/build.py

# The workbook as a page that runs in a browser, into build/site/html/lite; docs/browser.md.
lite: site-packages
	@$(BIN)/python docs/site/lite.py

# Pyodide's files into build/pyodide: with them `make lite` makes pages that ask no other server.
pyodide: site-packages
	@$(BIN)/python docs/site/pyodide.py

# Lessons in a headless Chromium, some minutes; `make test` does not run this.
lite-test: site-packages
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check playwright
	@$(BIN)/python -m pytest -s -n 0 -o pythonpath=docs/site docs/site/test_lite.py

# The tests with the newest versions that pyproject.toml allows, in an environment of their own.
newest:
	@$(MAKE) --no-print-directory NEWEST=--newest VENV=.venv-newest test

# The newest versions into constraints/, for every Python and system. Run `make test` after it, with
# each Python (make PYTHON=python3.12 test), before you commit them.
constraints: dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	for cuda in "12 cuda12" "13 cuda13 --extra compiler"; do set -- $$cuda; \
	  file=constraints/cuda$$1.txt; shift; extras="$$*"; \
	  echo "hatchling>=1.27" | $(BIN)/python -m uv pip compile pyproject.toml - --universal \
	    --python-version 3.11 --extra lessons --extra dev --extra mpi --extra site --extra $$extras --upgrade --quiet \
	    --no-header --no-annotate --no-emit-index-url --no-emit-package numba-cuda-simulator --output-file $$file || exit 1; \
	done

# Tracked files and lines, by room.
size:
	@$(PYTHON) docs/size.py

lessons dev:
	@$(INSTALL) $@ $(NEWEST)

site-packages:
	@$(INSTALL) site $(NEWEST)

# lessons/, which holds a learner's work, stays.
clean:
	rm -rf .venv .venv-newest tour
