# docker build -t vitrail .
# docker run --rm --gpus all --shm-size 2g -v "$PWD/data:/data" -v "$PWD/runs:/runs" vitrail train.py experiment=cifar10_vit_tiny trainer=gpu
#
# torch's wheels bring their own CUDA libraries; the base image only tells the container runtime which driver they need.
FROM nvidia/cuda:13.0.0-base-ubuntu24.04

# g++ and Python's headers are for torch.compile, which builds its kernels where it runs.
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      ca-certificates g++ make python3 python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home --uid 10001 vitrail \
 && install -d -o vitrail -g vitrail /opt/vitrail /data /runs
USER vitrail
WORKDIR /opt/vitrail
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1

# First what the installation reads, so that editing code does not install torch again.
COPY --chown=vitrail pyproject.toml constraints.txt Makefile README.md LICENSE ./
COPY --chown=vitrail configs configs
COPY --chown=vitrail src/vitrail/__init__.py src/vitrail/__init__.py
RUN make setup

COPY --chown=vitrail . .
RUN ln -s /data data && ln -s /runs runs
VOLUME ["/data", "/runs"]

ENTRYPOINT [".venv/bin/python"]
CMD ["train.py", "--help"]
