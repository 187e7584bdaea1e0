# Operator, routers and KV stores: everything of Tandem that computes no model. It has no torch.
#   docker build -f deploy/docker/core.Dockerfile -t REGISTRY/tandem-core:0.1.0 .
# Behind an index or a proxy of your own: --secret id=pip,src=pip.conf and, for its authority, --secret id=ca,src=ca.pem
# with `cert = /run/secrets/ca` in that pip.conf. Neither becomes a part of the image.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# Requirements first: a change of our code leaves this layer as it is.
COPY pyproject.toml README.md constraints.txt ./
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca \
    mkdir tandem \
    && python3 -m venv /opt/tandem \
    && /opt/tandem/bin/pip install setuptools==80.9.0 \
    && /opt/tandem/bin/pip install --constraint constraints.txt --no-build-isolation ".[kubernetes,redis,tiers]" \
    && /opt/tandem/bin/pip uninstall --yes tandem-serve
COPY . .
RUN /opt/tandem/bin/pip install --no-deps --no-build-isolation . \
    && /opt/tandem/bin/pip uninstall --yes pip setuptools \
    && find /opt/tandem -name tests -type d -prune -exec rm -rf {} + \
    && /opt/tandem/bin/python -m compileall -q -j 0 /opt/tandem/lib

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="tandem-core" \
      org.opencontainers.image.description="Operator, routers and KV stores of Tandem" \
      org.opencontainers.image.licenses="Apache-2.0"
# Python's slim images come without the bytecode of its own library, and nobody can write it once the image is made.
RUN python3 -m compileall -q -j 0 -x '/(site|dist)-packages/|/tests?/|/lib2to3/' \
    "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
COPY --from=build /opt/tandem /opt/tandem
# The user has no home of its own; pods have room to write below /tmp.
ENV PATH=/opt/tandem/bin:${PATH} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1 HOME=/tmp
WORKDIR /tmp
USER 10001:10001
# Health and metrics of the operator, its scaler; REST, gRPC and the operator's own way of routers; links, blocks and
# metrics of stores.
EXPOSE 8080 9090 8000 8001 9000 8443 7400 7401 7480
CMD ["python", "-m", "router", "--help"]
