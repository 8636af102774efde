#!/bin/sh
# Removes what install.sh made, and nothing else: what somebody put beside it stays, and is named.
#
#   sh uninstall.sh [--prefix DIR]
set -eu

say() { printf '%s\n' "$*"; }
refuse() { printf 'error: %s\n' "$*" >&2; exit 1; }

prefix=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
if [ "${1:-}" = --prefix ]; then prefix=${2:?--prefix needs a folder}; fi
[ -f "$prefix/made-folders" ] || refuse "$prefix holds nothing that install.sh made. Run the uninstall.sh that lies there"

if [ -f "$prefix/made-unit" ]; then
    unit=$(cat "$prefix/made-unit")
    if [ "$(id -u)" = 0 ]; then control="systemctl"; else control="systemctl --user"; fi
    $control disable --now --quiet "${unit##*/}" 2>/dev/null || true
    rm -f "$unit" "$unit.new"
    $control daemon-reload 2>/dev/null || true
    say "removed $unit"
fi
folders=$(cat "$prefix/made-folders")
[ ! -f "$prefix/made-user" ] || userdel "$(cat "$prefix/made-user")" || true
rm -rf "$prefix/env" "$prefix/env.new" "$prefix"/env-* "$prefix/model" "$prefix/trust" "$prefix/state" "$prefix/made-user" \
    "$prefix/licences" "$prefix/anchors" "$prefix/pushed" "$prefix/.store" "$prefix/made-unit" "$prefix/made-folders" "$prefix/uninstall.sh"
printf '%s\n' "$folders" | sort -r | while read -r folder; do
    [ -z "$folder" ] || rmdir "$folder" 2>/dev/null || true
done
if [ -d "$prefix" ] && [ -n "$(ls -A "$prefix")" ]; then
    say "left, because install.sh did not make it:"
    for one in "$prefix"/* "$prefix"/.[!.]*; do [ ! -e "$one" ] || say "  $one"; done
else
    say "removed $prefix"
fi
