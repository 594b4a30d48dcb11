# docker build --build-arg UID="$(id -u)" -t vitrail .
# docker run --rm --gpus all --shm-size 2g -v "$PWD/data:/data" -v "$PWD/runs:/runs" vitrail \
#   train.py experiment=cifar10_vit_tiny trainer=gpu
#
# torch's wheels bring their own CUDA libraries; what the base image adds is the word to the container
# runtime that a GPU is wanted, and a driver that is new enough.
FROM nvidia/cuda:13.0.0-base-ubuntu24.04

# g++ and Python's headers are for torch.compile, which builds its kernels where it runs.
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      ca-certificates g++ make python3 python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/*

# Runs in a mounted folder belong to this user; the base image has one of its own with the number 1000.
ARG UID=1000
RUN useradd --non-unique --uid "$UID" --create-home vitrail \
 && install -d -o vitrail -g vitrail /opt/vitrail /data /runs
USER vitrail
WORKDIR /opt/vitrail
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1

# First only what the installation reads, so that editing code does not install torch again.
COPY --chown=vitrail:vitrail pyproject.toml constraints.txt Makefile README.md LICENSE ./
COPY --chown=vitrail:vitrail src/vitrail/__init__.py src/vitrail/__init__.py
RUN make setup

COPY --chown=vitrail:vitrail . .
RUN ln -s /data data && ln -s /runs runs
VOLUME ["/data", "/runs"]

ENTRYPOINT ["/opt/vitrail/.venv/bin/python"]
CMD ["train.py", "--help"]
