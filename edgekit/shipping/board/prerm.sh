#!/bin/sh
# Before dpkg removes its files: stop what runs of them, and remove what was made of them here.
set -e
root=${DPKG_ROOT:-}
if [ -n "@SERVICE@" ] && [ -z "$root" ] && [ -d /run/systemd/system ]; then
    systemctl stop "@SERVICE@" || true
    [ "$1" != remove ] || systemctl disable --quiet "@SERVICE@" || true
fi
find "$root/opt/edgekit/@NAME@/current" -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
[ "$1" != remove ] || rm -rf "$root/opt/edgekit/@NAME@/state"
