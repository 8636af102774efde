#!/bin/sh
# What dpkg runs after it unpacked the environment: `edgekit install` puts the bundle into its root, as on any board. It refuses
# what is not trusted, older than one seen before, or wrong here; then the package is not configured.
set -e
root=${DPKG_ROOT:-}
home=$root/opt/edgekit/@NAME@
data=$root/var/lib/edgekit/@NAME@
[ "$1" = configure ] || exit 0
[ -z "@DELEGATE@" ] || export EDGEKIT_DELEGATE="@DELEGATE@"
edgekit() { EDGEKIT_STATE_DIR=$data/state "$home/env/bin/python3" -c 'from edgekit.cli import main; main()' "$@"; }

if [ -n "@SERVICE@" ] && [ -z "$root" ] && ! id "@USER@" >/dev/null 2>&1; then
    group=
    [ -z "@DEVICE@" ] || group=$(stat -c %G "@DEVICE@" 2>/dev/null) || group=
    [ "$group" != root ] || group=
    useradd --system --user-group ${group:+--groups "$group"} --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin "@USER@"
fi
mkdir -p "$data"
[ -d "$data/state" ] || mkdir -m 700 "$data/state"
set -- --root "$data/model" @ALLOW_UNSIGNED@
for file in @TRUST@; do
    mkdir -p "$data/trust"
    case $file in
        *.json) edgekit keys update "$home/package/trust/$file" --to "$data/trust/$file" || [ -f "$data/trust/$file" ] ;;
        *) cp "$home/package/trust/$file" "$data/trust/$file" ;;
    esac
    set -- "$@" --trust "$data/trust/$file"
done
if ! edgekit install "$home/package/@NAME@.ekb" "$@"; then
    echo "@PACKAGE@: the bundle was not installed, so the package is not set up." >&2
    exit 1
fi
if [ -n "@SERVICE@" ] && [ -z "$root" ]; then
    chown -R "@USER@:@USER@" "$data/state"
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        systemctl enable --quiet "@SERVICE@"
        systemctl restart "@SERVICE@"
    fi
fi
