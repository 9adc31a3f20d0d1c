# Two ways to the same image: FROM scratch, one static program, no shell, not
# root.
#
#   docker build -t cdc-dispatcher .
#       compiles in a container. BUILDER is any image with Go.
#
#   make image
#       compiles on this machine and copies the result (target "binary"), for
#       places where no image can be pulled. Needs nothing but the engine.
#
# Stages are in this order because the builder before BuildKit runs every stage
# up to its target.

ARG BUILDER=golang:1.26

FROM scratch AS base
USER 65532:65532
ENV CDC_DISPATCHER_CONFIG=/etc/cdc-dispatcher/cdc-dispatcher.yaml
ENTRYPOINT ["/cdc-dispatcher"]
CMD ["run"]
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/cdc-dispatcher", "health"]

# The second name matches nothing when the folder is not there, which is then
# no error, because the first one does.
FROM base AS binary
COPY README.md dist/rootf[s] /

FROM ${BUILDER} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG PACKAGE=./cmd/cdc-dispatcher
ARG VERSION=dev
RUN scripts/rootfs.sh /rootfs "$PACKAGE" "$VERSION"

FROM base AS image
COPY --from=build /rootfs /
