# C and C++: compilers, build tools, a debugger.
#
#   docker build -t localhost/sandbox-mcp/cpp -f docker/Dockerfile.cpp docker
ARG BASE=debian:bookworm-slim
FROM ${BASE}
COPY prepare.sh /tmp/prepare.sh
RUN sh /tmp/prepare.sh bash curl jq git procps build-essential cmake ninja-build pkg-config gdb \
    && rm /tmp/prepare.sh
COPY entrypoint.sh /usr/local/bin/entrypoint.sh
ENV HOME=/home/sandbox LANG=C.UTF-8
USER sandbox
WORKDIR /workspace
ENTRYPOINT ["/usr/local/bin/entrypoint.sh"]
