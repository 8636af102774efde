#!/bin/sh
# After dpkg removed its files: the verdicts that the model's self-test left, and the folders that are empty now.
set -e
root=${DPKG_ROOT:-}
case $1 in
    remove | purge)
        rm -rf "$root/opt/edgekit/@NAME@/state"
        rmdir "$root/opt/edgekit/@NAME@" "$root/opt/edgekit" 2>/dev/null || true
        [ -n "$root" ] || [ ! -d /run/systemd/system ] || systemctl daemon-reload
        ;;
esac
