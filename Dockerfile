# Usage: docker build --build-arg ACCELERATOR=cuda --tag registry.example.com/big_align:latest .
#
# ACCELERATOR is cuda, tpu or cpu: what JAX is installed for. CUDA and libtpu come as Python wheels;
# from the host come the devices (docker run --gpus=all, or --privileged --net=host for TPUs).
FROM python:3.11-slim

ARG ACCELERATOR=cuda
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1

RUN useradd --create-home --uid 1000 trainer
WORKDIR /big_align

# Packages first: an edit of the code does not install them again.
COPY setup.py pyproject.toml requirements.lock ./
RUN case "$ACCELERATOR" in \
      cuda | tpu) extra="[$ACCELERATOR]" ;; \
      cpu) extra="" ;; \
      *) echo "ACCELERATOR is cuda, tpu or cpu, not '$ACCELERATOR'" >&2 && exit 2 ;; \
    esac \
    && mkdir big_align && touch big_align/__init__.py \
    && pip install --editable ".$extra" --constraint requirements.lock

COPY . .
USER 1000
CMD ["python", "main.py", "--help"]
