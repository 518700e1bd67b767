# Fulcrum with the versions of constraints.txt, for a GPU (`docker run --gpus all`) or without one:
#     docker build -t fulcrum . && docker run --rm -v "$PWD:/work" fulcrum run digits fedavg
# A smaller one for CPUs alone takes torch from another index beside pip's own, PyTorch's of CPU wheels: --build-arg
# INDEX=ADDRESS. There torch is 2.X.Y+cpu, which pip takes for newer than 2.X.Y.
FROM python:3.12-slim
ARG INDEX=
# .git stays outside, and the version with it: without this one, records name no commit, and `submit` refuses them;
# --build-arg VERSION="0.0.dev0+g$(git rev-parse HEAD)"
ARG VERSION=0.0.dev0
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY . /fulcrum
RUN SETUPTOOLS_SCM_PRETEND_VERSION=$VERSION pip install --no-cache-dir -c /fulcrum/constraints.txt \
    ${INDEX:+--extra-index-url "$INDEX"} '/fulcrum[clusters,dp,export]' \
    && rm -r /fulcrum
WORKDIR /work
ENTRYPOINT ["fulcrum"]
CMD ["--help"]
