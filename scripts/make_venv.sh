#!/usr/bin/env bash
# Make or renew a virtual environment with this package, editable.
#
#   scripts/make_venv.sh FOLDER PYTHON EXTRAS [REQUIREMENT...]
#
# EXTRAS are those of pyproject.toml, separated by commas. A REQUIREMENT, such as torch==2.8.0, is
# installed in the same run, so that everything else has to suit it.
set -euo pipefail

folder=$1
python=$2
extras=$3
shift 3

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "otel_modtrack needs Python 3.10 or newer, which '$python' is not: make PYTHON=python3.12" >&2
    exit 1
fi

# One that is there is renewed in place, unless its Python is gone.
if ! "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "== Making $folder with $("$python" --version)"
    "$python" -m venv --clear "$folder"
fi

what=(--editable ".[$extras]" "$@")

# A build of torch for CPUs is much smaller. pip takes it only when asked by its version, and only
# where the configured indexes offer one for this platform.
if [ $# -eq 0 ]; then
    cpu_version=$("$folder/bin/python" -m pip index versions torch 2>/dev/null |
        grep --only-matching --extended-regexp '[0-9][0-9.]*\+cpu' | head -1 || true)
    if [ -n "$cpu_version" ]; then
        what+=("torch==$cpu_version")
    fi
fi

# A first time shows pip's progress; later it has little to do and less to say.
if [ -e "$folder/.installed" ]; then
    what+=(--quiet)
fi

echo "== Installing into $folder (minutes, the first time): pip install ${what[*]}"
"$folder/bin/python" -m pip install --quiet --upgrade pip
"$folder/bin/python" -m pip install "${what[@]}"
"$folder/bin/python" -c '
import platform, torch
print(f"== Ready: Python {platform.python_version()}, torch {torch.__version__}")'
