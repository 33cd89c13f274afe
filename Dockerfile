# A small image with the wheel and the notebooks: `make release`, then `docker build --tag macatensor .` and
# `docker run --rm --publish 127.0.0.1:8888:8888 macatensor`. Whatever else the folder holds stays outside: .dockerignore.
FROM python:3.13-slim-bookworm

# PyPI's build of PyTorch brings gigabytes for GPUs. pip reads its index from this argument, too:
# `--build-arg PIP_EXTRA_INDEX_URL=...` and `--build-arg TORCH=torch==2.13.0+cpu` take one for the CPU from another.
ARG TORCH="torch==2.13.0"
ARG PIP_EXTRA_INDEX_URL

RUN useradd --create-home --uid 1000 macatensor
WORKDIR /home/macatensor

COPY dist/*.whl /tmp/wheels/
# hadolint ignore=DL3013 # the versions are in the argument and in the wheel's name
RUN pip install --no-cache-dir "${TORCH}" \
    && pip install --no-cache-dir "$(echo /tmp/wheels/*.whl)[demo]" jupyterlab==4.4.* \
    && rm -r /tmp/wheels \
    && macatensor check

COPY --chown=1000 notebooks/ notebooks/
USER 1000
EXPOSE 8888
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8888/api')"]
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--no-browser", "--notebook-dir=notebooks"]
