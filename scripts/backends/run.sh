#!/usr/bin/env bash
# Run Jaeger and a Collector with collector/config.yaml until Ctrl-C: the real thing without Docker.
#
#   scripts/backends/run.sh
#
# Addresses are those of docker-compose.yml, and can be changed by the variables at the top of
# collector/config.yaml and of scripts/backends/jaeger.yaml.
set -euo pipefail
# Each program in a group of its own: Ctrl-C comes to us, and we stop them in order.
set -m

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
programs=$("$root/scripts/backends/build.sh")
{ read -r jaeger && read -r collector; } <<<"$programs"

export JAEGER_OTLP_GRPC=${JAEGER_OTLP_GRPC:-127.0.0.1:14317}
export JAEGER_QUERY=${JAEGER_QUERY:-127.0.0.1:16686}
export JAEGER_HEALTH=${JAEGER_HEALTH:-127.0.0.1:13132}
export COLLECTOR_OTLP_GRPC=${COLLECTOR_OTLP_GRPC:-127.0.0.1:4317}
export COLLECTOR_OTLP_HTTP=${COLLECTOR_OTLP_HTTP:-127.0.0.1:4318}
export COLLECTOR_PROMETHEUS=${COLLECTOR_PROMETHEUS:-127.0.0.1:8889}
export COLLECTOR_HEALTH=${COLLECTOR_HEALTH:-127.0.0.1:13133}
export COLLECTOR_BACKEND=${COLLECTOR_BACKEND:-$JAEGER_OTLP_GRPC}
# The programs heed them too, and would send traces of themselves.
unset "${!OTEL_@}"

logs=$(mktemp -d)
pids=()

stop() {
    trap - EXIT
    # The Collector first: what it still holds goes to Jaeger.
    for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
        kill -TERM "${pids[i]}" 2>/dev/null || true
        wait "${pids[i]}" 2>/dev/null || true
    done
    rm -rf "$logs"
}
trap stop EXIT
trap 'echo; echo "== Stopping"; exit 0' INT TERM

# Does it answer that all is well? Without curl, which is not everywhere.
healthy() {
    local line
    { exec 3<>"/dev/tcp/${1%:*}/${1##*:}"; } 2>/dev/null || return 1
    printf 'GET %s HTTP/1.0\r\n\r\n' "$2" >&3
    { read -r line <&3; } 2>/dev/null && [[ $line == *" 200 "* ]]
}

# start NAME HEALTH_ADDRESS HEALTH_PATH COMMAND...
start() {
    local name=$1 address=$2 path=$3
    shift 3
    "$@" >"$logs/$name" 2>&1 &
    local pid=$!
    pids+=("$pid")
    for ((i = 0; i < 300; i++)); do
        # A port that is taken ends the program: then whoever answers is not ours.
        kill -0 "$pid" 2>/dev/null || break
        if healthy "$address" "$path"; then return; fi
        sleep 0.1
    done
    echo "== $name did not start. $(tail -n 1 "$logs/$name")" >&2
    if grep -q "address already in use" "$logs/$name"; then
        echo "   Perhaps another make jaeger or docker compose is running." >&2
    fi
    exit 1
}

start Jaeger "$JAEGER_HEALTH" /status "$jaeger" --config "$root/scripts/backends/jaeger.yaml"
start Collector "$COLLECTOR_HEALTH" / "$collector" --config "$root/collector/config.yaml"

cat <<END
== Jaeger and a Collector are running; Ctrl-C stops them. Jaeger keeps traces in memory.

   OTLP over HTTP       http://$COLLECTOR_OTLP_HTTP
   OTLP over gRPC       http://$COLLECTOR_OTLP_GRPC
   Jaeger's query API   http://$JAEGER_QUERY/api/services, /api/traces?service=NAME, /api/v3/traces/ID
   metrics of spans     http://$COLLECTOR_PROMETHEUS/metrics

   To send to them, in another terminal:

   OTEL_EXPORTER_OTLP_ENDPOINT=http://$COLLECTOR_OTLP_HTTP otel-modtrack demo
   curl 'http://$JAEGER_QUERY/api/traces?service=otel-modtrack-demo&limit=1'

   Jaeger's page is not in this build: its Go module has a placeholder for it, and http://$JAEGER_QUERY shows
   that. The storage and the query API are the real ones. For the page: docker compose up --wait
END

# Either of them ending is the end.
wait -n || true
echo "== One of them ended. What they last said:" >&2
tail -n 2 "$logs"/* >&2
exit 1
