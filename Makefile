# Every target sets up what it needs in .venv; all commands run from the repository's root.
PYTHON ?= python3
BACKEND ?= fastapi_onnx
DATA ?= ../shared
RUN ?= runs/food11
IMAGES ?= fastapi_onnx fastapi_pt flask_app jupyter
BIN := .venv/bin
export BACKEND

.DELETE_ON_ERROR:
.PHONY: run test test-docker bench notebooks lint format accuracy train proto lock clean

run: .venv/$(BACKEND).installed  ## the page and the API; BACKEND=fastapi_pt for PyTorch
	@exec $(BIN)/python -m serving.launch

test: .venv/dev.installed  ## everything that needs no GPU; browser tests where a Chromium is found
	$(BIN)/python -m pytest

test-docker: .venv/dev.installed  ## images and compose files for real; needs a Docker engine; IMAGES= builds fewer
	IMAGES="$(IMAGES)" $(BIN)/python -m pytest -m docker tests/docker

bench: .venv/dev.installed  ## limit, load, a short comparison; under ten minutes on two cores
	$(BIN)/python -m benchmarks bench

notebooks: .venv/dev.installed  ## runs them from top to bottom, outputs kept
	TQDM_DISABLE=1 $(BIN)/jupyter execute --inplace notebooks/*.ipynb

lint: .venv/dev.installed  ## style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy docker/healthcheck.py

format: .venv/dev.installed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

accuracy: .venv/dev.installed  ## DATA=folder with data/food11-64/ and photos/
	$(BIN)/python -m training.evaluate $(DATA)

train: .venv/dev.installed  ## models/food11 from DATA; takes hours on a CPU, goes on where it stopped
	$(BIN)/python -m training.food11 --data $(DATA) --run $(RUN)

proto: .venv/dev.installed  ## the gRPC messages, from serving/frontends/grpc_generated/open_inference.proto
	cd serving/frontends/grpc_generated && ../../../$(BIN)/uv run --no-project --with grpcio-tools==1.76.0 \
		python -m grpc_tools.protoc -I. --python_out=. open_inference.proto

lock: .venv/dev.installed  ## the pinned requirements, from pyproject.toml
	./training/lock

clean:
	rm -rf .venv

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv .venv

.venv/fastapi_%.installed: fastapi_%/requirements.txt flask_app/requirements.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(foreach file,$^,-r $(file))
	@touch $@

.venv/dev.installed: requirements-dev.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@
