# Workers with the engine vllm.
#   docker build -f deploy/docker/worker-vllm.Dockerfile -t REGISTRY/tandem-worker-vllm:0.1.0 .
# The base has vLLM for the accelerator: CUDA by default; for ROCm BASE_IMAGE=rocm/vllm:TAG with the same vLLM,
# PINS=constraints-vllm-rocm.txt, and EXTRAS=redis,tiers, since nixl's wheels are for CUDA. Behind an index or a proxy
# of your own: the secrets `pip` and `ca`, see core.Dockerfile.
ARG BASE_IMAGE=vllm/vllm-openai:v0.32.0

FROM ${BASE_IMAGE} AS build
ARG EXTRAS=redis,tiers,nixl
ARG PINS=constraints-vllm-cuda.txt
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# What vLLM came with stays as it is: where we would need another version, this stops and says which. What it has not
# is pinned.
COPY pyproject.toml README.md ${PINS} deploy/docker/pins.py ./
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca \
    mkdir tandem \
    && python3 -m venv --system-site-packages /opt/tandem \
    && python3 pins.py ${PINS} > /tmp/constraints.txt \
    && /opt/tandem/bin/pip install setuptools==80.9.0 \
    && /opt/tandem/bin/pip install --constraint /tmp/constraints.txt --no-build-isolation ".[${EXTRAS}]" \
    && /opt/tandem/bin/pip uninstall --yes tandem-serve
COPY . .
# The base's own `vllm` would not find Tandem.
RUN /opt/tandem/bin/pip install --no-deps --no-build-isolation . \
    && /opt/tandem/bin/python -c "import vllm, importlib.metadata as m; assert m.version('tandem-serve')" \
    && /opt/tandem/bin/pip uninstall --yes pip \
    && printf '%s\n' '#!/opt/tandem/bin/python' 'import sys' 'from vllm.entrypoints.cli.main import main' \
        'sys.exit(main())' > /opt/tandem/bin/vllm \
    && chmod 755 /opt/tandem/bin/vllm

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="tandem-worker-vllm" \
      org.opencontainers.image.description="Workers of Tandem with the engine vllm" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/tandem /opt/tandem
# Compiled kernels and downloads go where pods have room to write.
ENV PATH=/opt/tandem/bin:${PATH} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1 \
    HOME=/tmp USER=tandem VLLM_CACHE_ROOT=/tmp/vllm TRITON_CACHE_DIR=/tmp/triton TORCHINDUCTOR_CACHE_DIR=/tmp/inductor
WORKDIR /tmp
USER 10001:10001
ENTRYPOINT []
EXPOSE 7400 7401 7402 7480
CMD ["python", "-m", "decode_worker", "--help"]
