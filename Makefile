# make learn · make test · make grade · make tour · make bench · make sanitize
# Everything lives in .venv/; a stamp per layer means a second call installs nothing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# The GPU's driver decides which CUDA packages fit; without a GPU, only the compiler is installed.
CUDA := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p')
ACCELERATOR := $(if $(filter 12,$(CUDA)),cuda12,$(if $(CUDA),cuda13,compiler))

.PHONY: learn test grade tour bench sanitize clean
.DEFAULT_GOAL := learn

learn: $(VENV)/.lessons
	@$(BIN)/fa-numba doctor
	$(BIN)/jupyter lab --ServerApp.root_dir=. notebooks/00_a_gpu_in_ten_minutes.ipynb

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

grade: $(VENV)/.lessons
	$(BIN)/python -m pytest exercises/

tour: $(VENV)/.lessons
	@$(BIN)/fa-numba tour

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

# On a GPU: the small cases under each tool of compute-sanitizer. initcheck does not see what TMA
# stores, and takes it for never written: kernels that store by TMA are left to the other three.
# racecheck does not know that a lane arrives at an mbarrier for its warp, nor that what is loaded
# beyond a tile's end is not used: FP8 and float32 with register tiles are left to the others.
sanitize: $(VENV)/.dev
	for tool in "memcheck --report-api-errors no" racecheck "synccheck --num-cuda-barriers 65536" initcheck; do \
	  case $$tool in initcheck) files="tests/test_gpu.py tests/test_flash_decode_wide_gpu.py" ;; \
	    *) files=$$(ls tests/test_*_gpu.py tests/test_gpu.py) ;; esac; \
	  case $$tool in racecheck) cases="(small or tf32x3) and not fp8 and not simt" ;; \
	    *) cases="small or fp8 or tf32x3" ;; esac; \
	  compute-sanitizer --tool $$tool --error-exitcode 1 \
	    $(BIN)/python -m pytest -q -n 4 --dist worksteal -m gpu -k "$$cases" $$files || exit 1; \
	done

$(VENV)/.lessons: pyproject.toml
	@echo "== Installing fa-numba[lessons,$(ACCELERATOR)] into $(VENV)/ (once) =="
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -e ".[lessons,$(ACCELERATOR)]"
	@touch $@

$(VENV)/.dev: $(VENV)/.lessons
	@echo "== Installing the test tools into $(VENV)/ (once) =="
	$(BIN)/python -m pip install --disable-pip-version-check -e ".[lessons,$(ACCELERATOR),dev]"
	@touch $@

clean:
	rm -rf $(VENV) tour
