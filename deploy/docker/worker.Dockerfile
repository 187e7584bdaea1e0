# Workers with the engine torch, and with the simulated one.
#   docker build -f deploy/docker/worker.Dockerfile -t REGISTRY/tandem-worker:0.1.0 .
# PyPI's torch brings CUDA with it. For processors alone give --build-arg TORCH_INDEX=URL of an index of CPU builds; for
# ROCm an index of ROCm builds and BASE_IMAGE=rocm/dev-ubuntu-24.04:6.4.4. Such a build of the pinned version is taken
# before PyPI's; what else torch needs may come from PyPI, which has the versions that are pinned.
# Behind an index or a proxy of your own: the secrets `pip` and `ca`, see core.Dockerfile.
ARG BASE_IMAGE=python:3.11.14-slim-bookworm

FROM ${BASE_IMAGE} AS build
ARG TORCH_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Python images have one of their own.
RUN command -v python3 >/dev/null && python3 -c "import ensurepip" \
    || (apt-get update \
        && apt-get install --yes --no-install-recommends python3 python3-venv \
        && rm -rf /var/lib/apt/lists/*)
WORKDIR /src
# By far the largest layer comes first and changes least.
COPY constraints.txt ./
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca \
    python3 -m venv /opt/tandem \
    && /opt/tandem/bin/pip install --constraint constraints.txt ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} torch
COPY pyproject.toml README.md ./
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca \
    mkdir tandem \
    && /opt/tandem/bin/pip install setuptools==80.9.0 \
    && /opt/tandem/bin/pip install --constraint constraints.txt --no-build-isolation ".[torch,redis,tiers]" \
    && /opt/tandem/bin/pip uninstall --yes tandem-serve
COPY . .
RUN /opt/tandem/bin/pip install --no-deps --no-build-isolation . \
    && /opt/tandem/bin/pip uninstall --yes pip

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="tandem-worker" \
      org.opencontainers.image.description="Workers of Tandem with the engine torch" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN command -v python3 >/dev/null \
    || (apt-get update \
        && apt-get install --yes --no-install-recommends python3 \
        && rm -rf /var/lib/apt/lists/*)
# Python's slim images come without the bytecode of its own library, and nobody can write it once the image is made.
RUN python3 -m compileall -q -j 0 -x '/(site|dist)-packages/|/tests?/|/lib2to3/' \
    "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
COPY --from=build /opt/tandem /opt/tandem
# The user has no home of its own; pods have room to write below /tmp.
ENV PATH=/opt/tandem/bin:${PATH} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1 HOME=/tmp USER=tandem
WORKDIR /tmp
USER 10001:10001
# Links, blocks, control connections of nixl, health and metrics.
EXPOSE 7400 7401 7402 7480
CMD ["python", "-m", "decode_worker", "--help"]
