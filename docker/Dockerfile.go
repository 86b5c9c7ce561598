# Go. With BASE=golang:bookworm (or another official image) its newer compiler stays.
#
#   docker build -t localhost/sandbox-mcp/go -f docker/Dockerfile.go docker
ARG BASE=debian:bookworm-slim
FROM ${BASE}
COPY prepare.sh /tmp/prepare.sh
RUN sh /tmp/prepare.sh bash curl jq git procps gcc libc6-dev go:golang-go \
    && rm /tmp/prepare.sh
ENV GOPATH=/home/sandbox/go
COPY entrypoint.sh /usr/local/bin/entrypoint.sh
ENV HOME=/home/sandbox LANG=C.UTF-8
USER sandbox
WORKDIR /workspace
ENTRYPOINT ["/usr/local/bin/entrypoint.sh"]
