# hadolint global ignore=DL3008
# (What Debian has of a package is taken; its security updates are wanted.)
#
# Images for `fathom launch kubernetes`. The first is enough for pods of one process:
#
#   docker build --build-arg FATHOM_COMMIT="$(git rev-parse HEAD)" --target fathom -t registry.example/fathom .
#
# and the second, with Open MPI and ssh, for several pods and for GPUs:
#
#   docker build --build-arg FATHOM_COMMIT="$(git rev-parse HEAD)" --target cluster -t registry.example/fathom-mpi .

FROM docker.io/library/rust:1.95-slim-bookworm AS sources
WORKDIR /src
COPY . .
# There is no repository here that would know it.
ARG FATHOM_COMMIT=""
ENV FATHOM_COMMIT=$FATHOM_COMMIT

FROM sources AS build
RUN cargo build --release --locked -p fathom-cli && cp target/release/fathom /usr/local/bin/fathom

FROM sources AS build-mpi
RUN apt-get update \
    && apt-get install -y --no-install-recommends libopenmpi-dev libclang-dev \
    && rm -rf /var/lib/apt/lists/*
RUN cargo build --release --locked -p fathom-cli --features mpi && cp target/release/fathom /usr/local/bin/fathom

FROM docker.io/library/debian:bookworm-slim AS cluster
# pidof, which an evicted pod asks for its ranks, is part of Debian's slim image.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates openmpi-bin openssh-client openssh-server \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
    && mkdir -p /run/sshd /work
COPY --from=build-mpi /usr/local/bin/fathom /usr/local/bin/fathom
WORKDIR /work
# As root: the ssh server of a pod lets the ranks of others in with a key that Kubernetes mounts for root alone.
CMD ["fathom", "--help"]

FROM docker.io/library/debian:bookworm-slim AS fathom
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 65532 --create-home fathom \
    && install -d -o fathom -g fathom /work
COPY --from=build /usr/local/bin/fathom /usr/local/bin/fathom
USER 65532
WORKDIR /work
CMD ["fathom", "--help"]
