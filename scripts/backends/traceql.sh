#!/usr/bin/env bash
# Say what in TraceQL queries is no TraceQL, by the grammar that Grafana publishes and its editor uses.
#
#   scripts/backends/traceql.sh < QUERIES
#
# QUERIES is a JSON array of strings. On stdout comes an array that has for each query the places that the
# grammar does not allow, in order: none if all is well. The grammar goes to
# ${XDG_CACHE_HOME:-~/.cache}/otel_modtrack/backends, one directory for each set of pins, and what is there is
# used again. Exit code 3 and one sentence when Node.js is missing, 4 when the download fails.
set -euo pipefail

# The grammar, and the parser that reads it.
pins=(@grafana/lezer-traceql@1.0.0 @lezer/lr@1.4.12 @lezer/common@1.5.5)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

cache=${XDG_CACHE_HOME:-$HOME/.cache}/otel_modtrack/backends
folder=$cache/traceql-$(cksum <<<"${pins[*]}" | cut -d ' ' -f 1)

stop() {
    echo "== $1" >&2
    exit "${2:-1}"
}

for program in node npm; do
    command -v "$program" >/dev/null ||
        stop "$program is not installed, and Grafana's grammar for TraceQL needs it: https://nodejs.org, version 18 or newer" 3
done
if [ ! -d "$folder" ]; then
    mkdir -p "$cache"
    scratch=$(mktemp -d "$cache/building.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    npm install --prefix "$scratch" --ignore-scripts --no-audit --no-fund --loglevel=error "${pins[@]}" >&2 ||
        stop "Grafana's grammar for TraceQL could not be downloaded, for the reason above" 4
    # Whoever looks, also another that installs at the same time, sees all or nothing.
    [ -d "$folder" ] || mv "$scratch" "$folder"
fi
exec node "$here/traceql.mjs" "$folder"
