# One image for all services: `holdfast serve NAME`.
FROM rust:1.95-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        cmake g++ libcurl4-openssl-dev libssl-dev make pkg-config zlib1g-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target \
    cargo build --locked --profile dist --package cli --bin holdfast \
    && cp target/dist/holdfast /usr/local/bin/holdfast

FROM debian:12.12-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libssl3 zlib1g \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin holdfast
COPY --from=build /usr/local/bin/holdfast /usr/local/bin/holdfast
USER 10001:10001
ENTRYPOINT ["holdfast"]
CMD ["--help"]
