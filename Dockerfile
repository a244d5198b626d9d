# syntax=docker/dockerfile:1

# One image for every role: `standfast api`, `scheduler`, `worker`.

FROM rust:1.95-slim-bookworm AS build
# The allocator is C and is configured with make.
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# The caches live beside the layers, so a change of ours compiles only ours. The
# binary is copied out because a cache mount is not part of the layer.
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    cargo build --locked --release -p standfast \
    && install -D target/release/standfast /out/standfast

FROM debian:bookworm-slim
# git for plans that read repositories, certificates for `http` steps, tini to
# reap what `exec` steps leave behind and to pass SIGTERM on, so that a worker
# hands its attempts back before it ends.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates git tini \
    && rm -rf /var/lib/apt/lists/*
# Made here with the right owner: a new named volume takes over the owner of the
# folder that it is mounted on.
RUN useradd --system --uid 10001 --user-group --home-dir /var/lib/standfast standfast \
    && install -d -o standfast -g standfast \
        /var/lib/standfast /var/lib/standfast/blobs /var/lib/standfast/setup
COPY --from=build /out/standfast /usr/local/bin/standfast
USER standfast
WORKDIR /var/lib/standfast
ENTRYPOINT ["tini", "--", "standfast"]
CMD ["--help"]
