#!/bin/sh
# After dpkg removed its files: the empty folders. Bundles, trust and state are data: they stay until the package is purged.
set -e
root=${DPKG_ROOT:-}
case $1 in
    remove | purge)
        rmdir "$root/opt/edgekit/@NAME@" "$root/opt/edgekit" 2>/dev/null || true
        [ -n "$root" ] || [ ! -d /run/systemd/system ] || systemctl daemon-reload
        ;;
esac
if [ "$1" = purge ]; then
    rm -rf "$root/var/lib/edgekit/@NAME@"
    rmdir "$root/var/lib/edgekit" 2>/dev/null || true
fi
