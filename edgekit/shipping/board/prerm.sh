#!/bin/sh
# Before dpkg removes its files: stop the service, and remove the modules that Python compiled.
set -e
root=${DPKG_ROOT:-}
if [ -n "@SERVICE@" ] && [ -z "$root" ] && [ -d /run/systemd/system ]; then
    systemctl stop "@SERVICE@" || true
    [ "$1" != remove ] || systemctl disable --quiet "@SERVICE@" || true
fi
find "$root/opt/edgekit/@NAME@/env" -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
