#!/bin/sh
# packages.sh WHEEL EXTRAS ARCHITECTURE FOLDER: the wheel with its extras and their needs, for Debian trixie's Python.
# ARCHITECTURE is amd64 or arm64, as images call it. UV names the uv that fetches them.
set -e
case "$3" in
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
    *) echo "packages.sh: there are images for amd64 and arm64, not for '$3'" >&2; exit 2 ;;
esac
exec "${UV:-uv}" pip install --quiet --only-binary :all: --python-version 3.13 \
    --python-platform "$machine-manylinux_2_40" --target "$4" "$1[$2]"
