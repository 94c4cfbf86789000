# Every target sets up what it needs in .venv; all commands run from the repository's root.
PYTHON ?= python3
BACKEND ?= fastapi_onnx
DATA ?= ../shared
MODEL ?= models/food11
TRITON := runs/triton-test
PERF := runs/perf-analyzer
PYTRITON := nvidia-pytriton==0.7.0 \
	--hash=sha256:21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df \
	--hash=sha256:f99e07ee56fe065337453956afba17d2673e02ec6a632c3de26ce6e7b32a0898
IMAGES ?= fastapi_onnx fastapi_pt flask_app jupyter
TESTS ?= tests/docker
BIN := .venv/bin
# three processes for two cores, since most tests wait for a process; a file's tests share services
PYTEST := $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder
# Ray's variables, and its Python first on the PATH
RAY := PATH="$(CURDIR)/.venv-ray/bin:$$PATH" && . smallplates/ray/local.sh &&
SIZE_onnx := 560 MB
SIZE_pt := 5 GB
# both models of the repository, unless the environment names others
MODELS := $(if $(SERVING_MODEL_DIR)$(SERVING_MODELS)$(SERVING_MODEL_SHA256),,models/food11 models/sentiment)
SERVE = serve --backend $(BACKEND:fastapi_%=%) $(HOST:%=--host %) $(PORT:%=--port %)
# the requirements are complete and have the digest of each file; what they leave out, such as OpenVINO's telemetry,
# stays out. Python compiles what it imports; all of it has eight million lines
EXACTLY := --quiet --disable-pip-version-check --no-deps --require-hashes --no-compile
# packages go into .venv and are found there, whatever a pip.conf or the environment says
export PIP_USER := 0
unexport PYTHONHOME PYTHONPATH PYTHONSAFEPATH
# hundreds of processes start during the tests: each would compile the project again
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: run run-ray test test-all test-slow test-docs test-gpu test-triton test-wheel test-ray test-docker test-transformers
.PHONY: test-clients
.PHONY: triton-repository bench bench-gpu
.PHONY: notebooks notebook-triton lint format accuracy quantise train proto lock pin-images wheel docs docs-tables
.PHONY: clean

run: .venv/$(BACKEND).installed  ## the page and the API; BACKEND=fastapi_pt for PyTorch
	@PYTHONPATH="$(PYTHONPATH)" exec $(BIN)/python -m smallplates $(SERVE) $(MODELS)

run-ray: .venv-ray/installed  ## the same from three replicas on a local Ray of three nodes; 680 MB
	@$(RAY) exec python -m smallplates $(SERVE) --ray

test: .venv/dev.installed  ## before every commit; needs no PyTorch; a browser test where a Chromium is found
	$(PYTEST)

test-all: test  ## everything that needs no GPU: what `test` runs, then the tests marked slow
	@$(MAKE) test-slow

test-slow: .venv/dev-all.installed  ## the tests marked slow: they need PyTorch, or seconds
	$(PYTEST) -m slow --durations 20

test-docs: .venv/dev-all.installed  ## the blocks of code in README.md and docs/, as printed; part of test-all
	$(BIN)/python -m pytest -m slow tests/e2e/test_document_blocks.py

test-gpu: .venv/gpu.installed  ## what needs a GPU; fails where there is none
	$(BIN)/python -m pytest -m gpu tests/gpu -k fastapi_onnx  # apart: each brings a cuDNN of its own
	$(BIN)/python -m pytest -m gpu tests/gpu -k fastapi_pt

test-triton: .venv/dev.installed $(TRITON)/installed  ## a real Triton serves the model repository; 350 MB of its own
	SERVING_TEST_TRITON=$(TRITON)/bin/python $(BIN)/python -m pytest tests/e2e/test_triton.py

test-ray: .venv-ray/installed  ## replicas and nodes come and go on a local Ray; four minutes
	$(RAY) python -m pytest -W default -m ray tests/ray

test-transformers: .venv-transformers/installed  ## exports answer as transformers' own pipelines; 5 GB, most of it PyTorch for CUDA
	.venv-transformers/bin/python -m pytest -W default -m transformers tests/transformers

test-clients: .venv-clients/installed .venv-clients/node_modules  ## libraries that people use call the service; 600 MB, and Node
	.venv-clients/bin/python -m pytest -W default -m clients tests/clients

triton-repository: .venv/fastapi_onnx.installed .venv/$(BACKEND).installed  ## of MODEL, for docker/docker-compose-triton.yaml
	$(BIN)/python -m smallplates.export.triton --backend $(BACKEND:fastapi_%=%) --model $(MODEL)

test-docker: .venv/dev.installed  ## images and compose files for real; needs a Docker engine; IMAGES= builds fewer
	IMAGES="$(IMAGES)" $(BIN)/python -m pytest -m docker $(TESTS)

bench: .venv/dev-all.installed  ## limit, load, a short comparison; under ten minutes on two cores
	$(BIN)/python -m benchmarks bench

bench-gpu: .venv/gpu.installed  ## both backends on a GPU, alone and served; benchmarks/results/gpu.json
	$(BIN)/python -m benchmarks gpu --json benchmarks/results/gpu.json

notebooks: .venv/dev-all.installed  ## runs them from top to bottom, outputs kept
	TQDM_DISABLE=1 $(BIN)/jupyter execute --inplace notebooks/[1-6]_*.ipynb

notebook-triton: .venv/dev-all.installed $(TRITON)/installed $(PERF)/installed  ## the seventh: beside a real Triton
	TQDM_DISABLE=1 $(BIN)/jupyter execute --inplace notebooks/7_triton.ipynb

lint: .venv/dev.installed  ## style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy docker/healthcheck.py

format: .venv/dev.installed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

accuracy: .venv/dev-all.installed  ## of all of models/, in every precision; DATA=folder with data/ and photos/
	$(BIN)/python -m training.evaluate $(DATA)

quantise: .venv/dev-all.installed  ## int8 files of MODEL, made and judged with the photos of DATA
	$(BIN)/python -m smallplates quantize $(MODEL) --calibrate $(DATA)/data/food-sharp/train.zip \
		--validate $(DATA)/data/food11-64/val.zip --photos 5000

# large blocks of memory go back to the kernel otherwise, and come anew each time: a third slower
train: .venv/dev-all.installed  ## MODEL=food11, sentiment or questions from DATA; hours on a CPU, goes on where it stopped
	MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8000000000 $(BIN)/python -m training.$(notdir $(MODEL)) \
		--data $(DATA) --run $(or $(RUN),runs/$(notdir $(MODEL))) $(WEIGHTS:%=--weights %) $(EARLIER:%=--earlier %)

proto: .venv/dev.installed  ## the gRPC messages, from the files in smallplates/web/grpc/generated
	cd smallplates/web/grpc/generated && ../../../../$(BIN)/uv run --no-project --with grpcio-tools==1.76.0 \
		python -m grpc_tools.protoc -I. --python_out=. *.proto

wheel: .venv/dev.installed  ## runs/wheel/smallplates-VERSION-py3-none-any.whl: the same bytes from the same files
	rm -rf runs/wheel
	$(BIN)/uv build --quiet --wheel --out-dir runs/wheel

test-wheel: wheel  ## installs the wheel without an index, away from the checkout, and serves with it
	mkdir -p runs/wheelhouse && rm -f runs/wheelhouse/smallplates-*
	sed -e '/^ /d' -e 's/ \\$$//' requirements-dev.txt > runs/wheel/versions.txt  # the wheel has no digest to compare
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --only-binary :all: --dest runs/wheelhouse \
		--constraint runs/wheel/versions.txt runs/wheel/*.whl
	SERVING_TEST_WHEELHOUSE=runs/wheelhouse $(BIN)/python -m pytest tests/e2e/test_wheel.py

lock: .venv/dev.installed  ## the pinned requirements, from pyproject.toml
	./tools/lock

pin-images:  ## the digests of the base images, before a release; needs Docker with buildx
	./tools/pin-images

docs: .venv-docs/installed  ## README.md and docs/ as a site in runs/site; a link that leads nowhere fails
	.venv-docs/bin/python -m tools.site
	.venv-docs/bin/zensical build --clean --strict

docs-tables: .venv/dev.installed  ## the generated parts of README.md and docs/, from code and results
	$(BIN)/python -m benchmarks plots
	$(BIN)/python -m tools.tables

clean:
	rm -rf .venv .venv-clients .venv-docs .venv-ray .venv-transformers

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv .venv

.venv-docs/installed: tools/requirements.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install $(EXACTLY) -r $<
	@touch $@

.venv-clients/installed .venv-ray/installed .venv-transformers/installed: .venv-%/installed: requirements-%.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install $(EXACTLY) -r $<
	@touch $@

.venv-clients/node_modules: tests/clients/package-lock.json | .venv-clients/installed
	cp tests/clients/package*.json .venv-clients
	npm ci --silent --no-audit --no-fund --prefix .venv-clients
	@touch $@

.venv/fastapi_%.installed: fastapi_%/requirements.txt | .venv/bin/python
	@echo "installing $(SIZE_$*) of packages into .venv, once"
	$(BIN)/python -m pip install $(EXACTLY) -r $<
	@touch $@

.venv/dev.installed .venv/dev-all.installed: .venv/%.installed: requirements-%.txt | .venv/bin/python
	$(BIN)/python -m pip install $(EXACTLY) -r $<
	@touch $@

# onnxruntime-gpu takes the place of onnxruntime: both are the same module
.venv/gpu.installed: .venv/dev-all.installed pyproject.toml
	$(BIN)/python -m pip uninstall --quiet --yes onnxruntime
	echo "onnxruntime; sys_platform == 'never'" | $(BIN)/uv pip install --quiet --python $(BIN)/python \
		-r pyproject.toml --extra onnx-gpu --extra pt --override -
	@touch $@

# perf_analyzer is a program in a wheel; it needs Debian's libb64, which takes no root to unpack
$(PERF)/installed: notebooks/perf-analyzer.txt | .venv/bin/python
	rm -rf $(PERF) && mkdir -p $(PERF)
	$(BIN)/python -m pip install $(EXACTLY) --target $(PERF) -r $<
	ldconfig -p | grep -q libb64.so.0 || { cd $(PERF) && apt-get download -q libb64-0d && dpkg -x libb64-0d*.deb .; }
	@touch $@

# nvidia-pytriton carries a Triton with the Python backend; its own Python code is not used
$(TRITON)/installed: smallplates/export/triton/requirements.txt
	$(PYTHON) -m venv $(TRITON)
	$(TRITON)/bin/python -m pip install $(EXACTLY) -r $<
	echo "$(PYTRITON)" | $(TRITON)/bin/python -m pip install $(EXACTLY) -r /dev/stdin
	@touch $@
