#!/usr/bin/env bash
# `make reproduce` and `make test` with every Python that the suite allows and this machine has (on PATH or below ~/.pyenv), each in
# a clone of its own, of what is committed:   tests/every_python.sh [TARGET...]
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
targets=("$@")
[ $# -gt 0 ] || targets=(reproduce test)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
found=0
for name in python3.11 python3.12 python3.13 python3.14; do
    python=
    for each in $(type -ap "$name") ~/.pyenv/versions/*/bin/"$name"; do # what pyenv puts on PATH need not run
        if "$each" -c 'import venv, ensurepip' 2>/dev/null; then
            python=$each
            break
        fi
    done
    if [ -z "$python" ]; then
        echo "$name: not on this machine"
        continue
    fi
    found=1
    git clone --quiet "$root" "$scratch/$name"
    if ! make --silent -C "$scratch/$name" PYTHON="$python" .venv/installed >"$scratch/log" 2>&1; then
        echo "$name: its packages cannot be installed: $(tail -1 "$scratch/log")"
        failed=1
        continue
    fi
    for target in "${targets[@]}"; do
        if make --silent -C "$scratch/$name" PYTHON="$python" "$target" >"$scratch/log" 2>&1; then
            echo "$name: make $target passes"
        else
            echo "$name: make $target FAILS"
            grep '^FAILED\|^ERROR' "$scratch/log" || tail -30 "$scratch/log"
            failed=1
        fi
    done
    rm -rf "${scratch:?}/$name"
done
exit $((failed || !found))
