# Jupyter beside Triton: the image of notebooks/Dockerfile, and Triton's load generator perf_analyzer.
#   docker build -f notebooks/triton.Dockerfile -t smallplates-jupyter-triton .   (after smallplates/jupyter)
ARG PYTHON_IMAGE=python:3.13-slim-trixie
ARG JUPYTER_IMAGE=smallplates/jupyter:latest

FROM ${PYTHON_IMAGE} AS build
COPY notebooks/perf-analyzer.txt requirements.txt
RUN python -m pip install --target /opt/perf --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
    --no-deps --no-compile --require-hashes --only-binary :all: -r requirements.txt
RUN apt-get update && apt-get install --yes --no-install-recommends libb64-0d \
    && cp /usr/lib/*/libb64.so.0* /opt/perf/ && chmod -R a+rX /opt/perf

FROM ${JUPYTER_IMAGE}
ENV PATH=/opt/venv/bin:/opt/perf/bin:$PATH LD_LIBRARY_PATH=/opt/perf:/opt/perf/nvidia/cuda_runtime/lib
COPY --from=build /opt/perf /opt/perf
