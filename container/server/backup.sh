#!/bin/sh
# backup.sh FOLDER: the fleet's database, bundles, settings and the broker's users, in FOLDER/fleet-DATE. KEEP: how many.
# Whoever has it has every password of the fleet.
set -eu
umask 077
made="$1/fleet-$(date -u +%Y%m%dT%H%M%SZ)"
trap 'rm -rf "$made.part"' EXIT
mkdir -p "$made.part/"
cd "$made.part"
# The database first: all bundles that it names are there when the files follow.
runuser -u edgekit -- pg_dump --format=custom edgekit >fleet.dump
tar -C / --exclude=mosquitto.db -czf files.tar.gz etc/edgekit var/lib/edgekit var/lib/mosquitto/edgekit
sha256sum fleet.dump files.tar.gz >SHA256SUMS
sync -f .
cd "$1"
mv "$made.part" "$made"
ls -d fleet-*Z | head -n "-${KEEP:-14}" | xargs -r rm -r --
echo "$made"
