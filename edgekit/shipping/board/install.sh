#!/bin/sh
# Installs what lies beside this file: a model's bundle, and all that answers with it. Needs Python, and no network, no
# compiler and no rights but those for the folder that it writes to. Safe to run again: what is there is not done twice.
#
#   sh install.sh [--prefix DIR] [--python PYTHON] [--trust FILE]... [--allow-unsigned] [--trial here|app]
#                 [--no-service] [--service-user USER]
#
# It makes an environment, and `edgekit install` of that environment puts the bundle into PREFIX/model. A bundle that is not
# trusted, older than one seen before, or wrong on this board is refused there, and the active bundle stays active.
set -eu
umask 022

say() { printf '%s\n' "$*"; }
refuse() { printf 'error: %s\n' "$*" >&2; exit 1; }
# The folders of a path that are not there.
missing() {
    folder=$1
    while [ ! -d "$folder" ]; do
        printf '%s\n' "$folder"
        folder=$(dirname -- "$folder")
    done
}
# A link is made beside its place and moved over it: at no moment is there none.
point() { ln -sfn "$1" "$2.new"; mv -T -f "$2.new" "$2"; }

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
. "$here/package.conf"
if [ "$(id -u)" = 0 ]; then prefix=/opt/edgekit/$NAME; else prefix=${XDG_DATA_HOME:-$HOME/.local/share}/edgekit/$NAME; fi
python= service=${SERVICE:-} service_user=${SUDO_USER:-} trial=here unsigned=$ALLOW_UNSIGNED own_trust=
while [ $# -gt 0 ]; do
    case $1 in
        --prefix) prefix=${2:?--prefix needs a folder}; shift ;;
        --python) python=${2:?--python needs a program}; shift ;;
        --service-user) service_user=${2:?--service-user needs a name}; shift ;;
        --trust) own_trust="$own_trust
$(readlink -f -- "${2:?--trust needs a file}")"; shift ;;
        --allow-unsigned) unsigned=yes ;;
        --trial) trial=${2:?--trial needs here or app}; shift ;;
        --no-service) service= ;;
        -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) say "error: $1 is no option; sh install.sh --help lists them" >&2; exit 2 ;;
    esac
    shift
done
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
say "$TITLE"
say "  into $prefix"

# 1. The files are those that were packed.
(cd "$here" && sha256sum -c SHA256SUMS) >/dev/null 2>&1 ||
    refuse "files of this package are missing or have changed (in $here: sha256sum -c SHA256SUMS). Copy it again"
say "  every file has its SHA-256"

# 2. This is the machine that they are for. The question is asked so that any Python, however old, can answer it.
ask='
import os, platform, struct, sys
bits, machine = struct.calcsize("P") * 8, platform.machine()
machine = {"aarch64": "armv7l", "x86_64": "i686"}.get(machine, machine) if bits == 32 else machine
try: libc = os.confstr("CS_GNU_LIBC_VERSION")
except (AttributeError, ValueError, OSError): libc = "unknown"
print("%s %d.%d %s" % (machine, sys.version_info[0], sys.version_info[1], libc))
'
found= fits=
for candidate in ${python:-"python$PYTHON" python3 python}; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    answer=$("$candidate" -c "$ask" 2>/dev/null) || continue
    found="$found $candidate is $answer;"
    # shellcheck disable=SC2086
    set -- $answer
    [ "$1" = "$ARCH" ] && [ "$2" = "$PYTHON" ] && [ "$3" = glibc ] || continue
    [ "$(printf '%s\n%s\n' "$GLIBC" "$4" | sort -V | head -n 1)" = "$GLIBC" ] || continue
    fits=$(command -v "$candidate") && break
done
[ -n "${found}" ] || refuse "there is no Python here; the package is for $PROFILE, with Python $PYTHON"
[ -n "$fits" ] ||
    refuse "the package is for $PROFILE ($ARCH, Python $PYTHON, glibc $GLIBC or later), and here$found pack it for this board"
python=$fits
say "  $python is the Python $PYTHON that it is for"

# 3. What has no wheel for this machine is Debian's to bring.
missing=
for package in $DEBIAN; do
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) || status=
    [ "$status" = installed ] || missing="$missing $package"
done
[ -z "$missing" ] || refuse "packages of Debian's are missing. Run: sudo apt-get install$missing"
[ -z "$DEBIAN" ] || say "  Debian brings: $DEBIAN"

# 4. What install makes is written down, for uninstall.sh: folders that were not there, and files outside the prefix.
made=$(missing "$prefix")
mkdir -p "$prefix" 2>/dev/null || refuse "$prefix cannot be made. Give another with --prefix, or run it with sudo"
[ -w "$prefix" ] || refuse "$prefix cannot be written. Give another with --prefix, or run it with sudo"
[ -f "$prefix/made-folders" ] || printf '%s\n' "$made" >"$prefix/made-folders"
cp "$here/uninstall.sh" "$prefix/uninstall.sh"

# 5. An environment for exactly these wheels. It is the same one as long as they are the same.
env=$prefix/env-$ENV
works() { "$env/bin/edgekit" --version >/dev/null 2>&1; }
if [ -f "$env/complete" ] && works; then
    say "  the environment is there already"
else
    rm -rf "$env"
    say "  installing $WHEELS wheels (no network is asked)"
    site=
    case " $DEBIAN" in *" python3-"*) site=--system-site-packages ;; esac
    # shellcheck disable=SC2086
    "$python" -m venv --without-pip $site "$env"
    # Nothing is compiled ahead: the self-test below starts what a start needs, which compiles that much and no more. Settings
    # of pip's, the system's too (which --isolated reads), would lead elsewhere: it takes these wheels and no other advice.
    PIP_CONFIG_FILE=/dev/null "$env/bin/python" "$here/wheels/$PIP/pip" --isolated --quiet --disable-pip-version-check install --no-index \
        --no-deps --no-cache-dir --no-warn-script-location --no-compile --require-hashes --find-links "$here/wheels" \
        -r "$here/wheels/requirements.txt"
    works || refuse "the environment was installed and does not start (look at: $env/bin/edgekit --version)"
    : >"$env/complete"
fi

# 6. `edgekit install` decides about the bundle: who signed it, its number, the board, the golden answers, a trial. Keys that the
# package brings are for this model alone; a root.json that is newer here than in the package stays.
umask 077
mkdir -p "$prefix/state"
umask 022
export EDGEKIT_STATE_DIR="$prefix/state"
[ -z "$DELEGATE" ] || export EDGEKIT_DELEGATE="$DELEGATE"
set -- --root "$prefix/model" --trial "$trial"
for file in $TRUST; do
    mkdir -p "$prefix/trust"
    case $file in
        *.json)
            "$env/bin/edgekit" keys update "$here/trust/$file" --to "$prefix/trust/$file" || [ -f "$prefix/trust/$file" ] ||
                refuse "the package's $file cannot be used"
            ;;
        *) cp "$here/trust/$file" "$prefix/trust/$file" ;;
    esac
    set -- "$@" --trust "$prefix/trust/$file"
done
lines=$IFS IFS='
'
for file in $own_trust; do set -- "$@" --trust "$file"; done
IFS=$lines
[ -z "$unsigned" ] || set -- "$@" --allow-unsigned
"$env/bin/edgekit" install "$here/bundle/$BUNDLE" "$@" ||
    refuse "the bundle was not installed; what was active before stays active"

# 7. One link says which environment is used.
point "env-$ENV" "$prefix/env"
for old in "$prefix"/env-*; do
    [ "$old" = "$env" ] || rm -rf "$old"
done
rm -rf "$prefix/licences" "$prefix/anchors"
cp -r "$here/licences" "$prefix/licences"
[ ! -d "$here/anchors" ] || cp -r "$here/anchors" "$prefix/anchors"

# 8. The service, where one was packed.
if [ -n "$service" ]; then
    if [ "$(id -u)" = 0 ]; then
        units=${EDGEKIT_UNITS:-/etc/systemd/system} control="systemctl"
        if [ -z "$service_user" ]; then
            service_user=$USER_NAME
            if ! id "$service_user" >/dev/null 2>&1; then
                group=
                [ -z "$DEVICE" ] || group=$(stat -c %G "$DEVICE" 2>/dev/null) || group=
                [ "$group" != root ] || group=
                useradd --system --user-group ${group:+--groups "$group"} --no-create-home --home-dir /nonexistent \
                    --shell /usr/sbin/nologin "$service_user"
                printf '%s\n' "$service_user" >"$prefix/made-user"
            fi
        fi
    else
        units=${EDGEKIT_UNITS:-${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user} control="systemctl --user"
    fi
    missing "$units" >>"$prefix/made-folders"
    mkdir -p "$units"
    printf '%s\n' "$units/$service" >"$prefix/made-unit"
    sed -e "s|@PREFIX@|$prefix|g" -e "s|@USER@|$service_user|" "$here/service/$service" >"$units/$service.new"
    # A user's own manager has neither other users nor the rights that the lines of the system's section need.
    [ "$(id -u)" = 0 ] || sed -i -e '/^# The system/,/^# end/d' -e 's/^WantedBy=.*/WantedBy=default.target/' "$units/$service.new"
    mv "$units/$service.new" "$units/$service"
    if $control daemon-reload 2>/dev/null && $control enable --quiet "$service" && $control restart "$service"; then
        say "  $service runs, and starts with the board ($control status $service)"
    else
        say "  $service is written to $units; systemd does not run here, so it was not started"
    fi
fi

say "installed. Open $prefix/model with $prefix/env/bin/python; edgekit is $prefix/env/bin/edgekit"
say "remove all of it: sh $prefix/uninstall.sh"
