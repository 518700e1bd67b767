# Fulcrum with the versions of constraints.txt, for a GPU (`docker run --gpus all`) or without one:
#     docker build -t fulcrum . && docker run --rm -v "$PWD:/work" fulcrum run digits fedavg
# A smaller one for CPUs alone takes torch from another index, PyTorch's of CPU wheels: --build-arg INDEX=ADDRESS.
FROM python:3.12-slim
ARG INDEX=
# .git stays outside, and the version with it
ARG VERSION=0.0.dev0
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY . /fulcrum
RUN pip install --no-cache-dir -c /fulcrum/constraints.txt \
    ${INDEX:+--index-url "$INDEX"} torch torchvision \
    && SETUPTOOLS_SCM_PRETEND_VERSION=$VERSION pip install --no-cache-dir -c /fulcrum/constraints.txt '/fulcrum[clusters,dp,export]' \
    && rm -r /fulcrum
WORKDIR /work
ENTRYPOINT ["fulcrum"]
CMD ["--help"]
