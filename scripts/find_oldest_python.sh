#!/usr/bin/env bash
# Print the Python that the oldest supported versions are tested with: 3.10 where one runs.
set -euo pipefail

runs() {
    "$@" -c 'import sys' >/dev/null 2>&1
}

# A name on PATH proves nothing: a pyenv shim is there for versions that are not switched on.
if runs python3.10; then
    python3.10 -c 'import sys; print(sys.executable)'
    exit
fi

if command -v pyenv >/dev/null; then
    version=$(pyenv versions --bare | grep '^3\.10' | tail -1 || true)
    if [ -n "$version" ] && PYENV_VERSION=$version runs python3.10; then
        PYENV_VERSION=$version python3.10 -c 'import sys; print(sys.executable)'
        exit
    fi
fi

echo "No Python 3.10 runs here: the oldest torch is tested with ${PYTHON:-python3} instead." >&2
"${PYTHON:-python3}" -c 'import sys; print(sys.executable)'
