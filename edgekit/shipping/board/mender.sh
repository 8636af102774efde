#!/bin/sh
# A Mender Update Module (v3): installs the .ekb of an artifact, and goes back if Mender does. Its settings stand in
# /etc/edgekit/NAME.env, where NAME is the file's own name, so that a copy serves another root:
#
#   ROOT=/var/lib/edgekit/camera                        # the install root
#   EDGEKIT=/opt/edgekit/bin/edgekit                    # the program, if not on the PATH
#   OPTIONS="--trust /etc/edgekit/trust/root.json"      # of `edgekit install`
#   THEN="systemctl try-restart camera"                 # after each switch
set -eu
EDGEKIT=edgekit OPTIONS='' THEN=:
case $1 in NeedsArtifactReboot) echo No; exit ;; SupportsRollback) echo Yes; exit ;; esac
. "/etc/edgekit/$(basename -- "$0").env"
active() { readlink "${ROOT:?}/current" || :; }

case $1 in
    ArtifactInstall)
        set -- "$2" "$2"/files/*
        [ $# = 2 ] || { echo "the artifact must have one file, a bundle" >&2; exit 1; }
        active >"$1/tmp/before"
        $EDGEKIT install "$2" --root "$ROOT" $OPTIONS
        $THEN
        ;;
    ArtifactRollback)
        # An install that was refused, or cut off, has left the active bundle active.
        [ -f "$2/tmp/before" ] && [ "$(active)" != "$(cat "$2/tmp/before")" ] || exit 0
        $EDGEKIT rollback --root "$ROOT"
        $THEN
        ;;
esac
