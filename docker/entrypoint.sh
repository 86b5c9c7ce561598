#!/bin/sh
# What a container of these images starts with when nothing else is said: the command that was given, else it waits, so
# that commands can be run in it. With MCP_MODE=sandbox it speaks MCP on its standard streams (see Dockerfile.mcp).
set -eu
case ${MCP_MODE-} in
"") ;;
sandbox)
    command -v sandbox-mcp >/dev/null || { echo "MCP_MODE=sandbox needs sandbox-mcp in the image: build it with docker/Dockerfile.mcp" >&2; exit 1; }
    exec sandbox-mcp "$@"
    ;;
*)
    echo "MCP_MODE is \`$MCP_MODE\`, but must be \`sandbox\` or not set" >&2
    exit 2
    ;;
esac
if [ $# -eq 0 ]; then
    # Waits for ever, and still ends at once when it is told to: the first process of a container has no default for signals.
    trap 'exit 143' TERM
    trap 'exit 130' INT
    while :; do sleep 86400 & wait $!; done
fi
exec "$@"
