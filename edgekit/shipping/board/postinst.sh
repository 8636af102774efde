#!/bin/sh
# What dpkg runs after it unpacked the files: ask the model for its golden answers here. That start also compiles what every
# later one needs.
set -e
root=${DPKG_ROOT:-}
home=$root/opt/edgekit/@NAME@
python=$home/current/env/bin/python3
[ "$1" = configure ] || exit 0
mkdir -p "$home/state"
if ! EDGEKIT_STATE_DIR=$home/state "$python" -c 'from edgekit.cli import main; main()' selftest "$home/current/bundle.ekb"; then
    echo "@PACKAGE@: the model does not give its golden answers on this machine, so it is not set up." >&2
    exit 1
fi
if [ -n "@SERVICE@" ] && [ -z "$root" ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl enable --quiet "@SERVICE@"
    systemctl restart "@SERVICE@"
fi
