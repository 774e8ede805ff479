# syntax=docker/dockerfile:1
# The gateway in a container: one binary and glibc, no shell, no package manager, not root.
#
# The crate registry and target/ are cache mounts: a change of the sources does not build the dependencies again.

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY src ./src
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin gateway \
    && cp target/release/gateway /usr/local/bin/gateway

# glibc and nothing else. Root certificates are inside the binary. This image has no version tags: pin its digest where
# builds must be repeatable.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /usr/local/bin/gateway /usr/local/bin/gateway
COPY config/gateway.yaml config/docsassistant.yaml /etc/gateway/
USER 65532:65532

# Data port and admin port. Both listen on loopback until a flag or the configuration says otherwise.
EXPOSE 8080 9090

# No HEALTHCHECK: it would need a program inside the image to send the request. Ask the admin port from outside:
# GET /healthz for liveness, GET /readyz for readiness.
ENTRYPOINT ["/usr/local/bin/gateway"]
CMD ["serve", "--config", "/etc/gateway/gateway.yaml"]
