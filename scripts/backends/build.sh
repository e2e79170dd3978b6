#!/usr/bin/env bash
# Build the real backends, Jaeger and an OpenTelemetry Collector, from pinned Go modules.
#
#   scripts/backends/build.sh
#
# The programs go to ${XDG_CACHE_HOME:-~/.cache}/otel_modtrack/backends, one directory for each set of
# pins, and what is there is used again. Progress goes to stderr; on stdout are two lines, the path of
# Jaeger and the path of the Collector. Exit code 1 and one sentence when it cannot be done; 3 when Go is
# missing, 4 when a download fails.
set -euo pipefail

JAEGER=v1.76.0 # the Go module's tag; the program calls itself v2.13
BUILDER=v0.161.0
cd "$(dirname "${BASH_SOURCE[0]}")"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/otel_modtrack/backends

say() { echo "== $*" >&2; }

stop() {
    say "$1"
    exit "${2:-1}"
}

# What a Go command prints is kept in a file, and told when it fails. It does not keep the lock: Go's
# commands leave processes behind.
run() {
    local what=$1
    shift
    "$@" >>"$scratch/log" 2>&1 9>&- && return
    tail -n 5 "$scratch/log" >&2
    cp "$scratch/log" "$cache/failed.log"
    [[ $what == "The download"* ]] && local code=4
    stop "$what failed, for the reason above; the whole of it is in $cache/failed.log" "${code:-1}"
}

make_jaeger() {
    say "Jaeger $JAEGER: downloading (about 150 MB)"
    run "The download of Jaeger" go mod init backends
    run "The download of Jaeger" go get -tool "github.com/jaegertracing/jaeger/cmd/jaeger@$JAEGER"
    say "Jaeger $JAEGER: compiling (4 minutes on two cores)"
    run "Compiling Jaeger" go build -trimpath -ldflags "-s -w" -o jaeger github.com/jaegertracing/jaeger/cmd/jaeger
}

make_collector() {
    say "Collector $BUILDER: downloading (about 100 MB)"
    GOBIN=$scratch run "The download of the Collector's builder" \
        go install "go.opentelemetry.io/collector/cmd/builder@$BUILDER"
    cp "$pins" builder.yaml
    run "The download of the Collector" ./builder --config builder.yaml --skip-compilation
    say "Collector $BUILDER: compiling (2 minutes on two cores)"
    run "Compiling the Collector" go build -C source -trimpath -ldflags "-s -w" -o "$scratch/collector" .
}

# Built aside and then renamed: whoever looks sees all or nothing. Who comes while another builds waits.
provide() {
    local program=$1 key=$2
    local folder=$cache/$key
    if [ ! -x "$folder/$program" ]; then
        command -v go >/dev/null ||
            stop "Go is not installed, and $program is built with it: https://go.dev/dl, version 1.26 or newer" 3
        mkdir -p "$cache"
        if command -v flock >/dev/null; then
            exec 9>"$cache/lock"
            flock 9
        fi
    fi
    if [ ! -x "$folder/$program" ]; then
        scratch=$(mktemp -d "$cache/building.XXXXXX")
        trap 'rm -rf "$scratch"' EXIT
        (cd "$scratch" && "make_$program")
        mkdir -p "$folder"
        mv "$scratch/$program" "$folder/$program.$$"
        mv "$folder/$program.$$" "$folder/$program"
        rm -rf "$scratch"
        say "$program is in $folder"
    fi
    echo "$folder/$program"
}

# Options for other modules, as -mod=vendor, would be in the way here.
unset GOFLAGS
pins=$PWD/builder.yaml
sum=$({ cat builder.yaml; echo "$BUILDER"; } | cksum | cut -d ' ' -f 1)
provide jaeger "jaeger-$JAEGER"
provide collector "collector-$BUILDER-$sum"
