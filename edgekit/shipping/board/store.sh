# Keeps files by their SHA-256 in the folder that a package is installed to, and writes nowhere else: store.sh PREFIX TASK [NAME...]
#   wanted          of the lines "sha256 size" on stdin, those that are not here, with how much of each has come so far
#   append SHA      what comes on stdin goes behind what has come of that file so far
#   unpack          a tar of small files, each called by its SHA-256
#   keep SHA...     what has come whole is kept; prints those whose bytes are others, and forgets these
#   place RELEASE   of the lines "sha256 path" on stdin a package is put together, of links, whole or not at all
#   prune RELEASE   earlier packages go, and what no package is made of any more
set -eu
umask 022
prefix=$1 task=$2 store=$1/.store
shift 2
if [ ! -f "$prefix/made-folders" ]; then
    made='' folder=$prefix
    while [ ! -d "$folder" ]; do made="$folder
$made"; folder=$(dirname -- "$folder"); done
    mkdir -p "$prefix"
    printf '%s\n' "$made" >"$prefix/made-folders"
fi
mkdir -p "$store/incoming"
case $task in
    wanted)
        while read -r sha size; do
            [ ! -f "$store/$sha" ] || continue
            have=0
            [ ! -f "$store/incoming/$sha" ] || have=$(wc -c <"$store/incoming/$sha")
            if [ "$have" -gt "$size" ]; then rm "$store/incoming/$sha" && have=0; fi
            printf '%s %s\n' "$sha" "$((have))"
        done
        ;;
    append) cat >>"$store/incoming/$1" ;;
    unpack) tar -x -f - -C "$store/incoming" ;;
    keep)
        for sha; do
            came=$(sha256sum <"$store/incoming/$sha")
            if [ "${came%% *}" = "$sha" ]; then mv "$store/incoming/$sha" "$store/$sha"; else
                rm -f "$store/incoming/$sha"
                printf '%s\n' "$sha"
            fi
        done
        ;;
    place)
        package=$prefix/pushed/$1
        rm -rf "$package.new"
        mkdir -p "$package.new"
        while read -r sha path; do
            case $path in */*) mkdir -p "$package.new/${path%/*}" ;; esac
            ln -f "$store/$sha" "$package.new/$path" 2>/dev/null || cp "$store/$sha" "$package.new/$path"
        done
        rm -rf "$package"
        mv "$package.new" "$package"
        ;;
    prune)
        for package in "$prefix"/pushed/*; do [ "${package##*/}" = "$1" ] || rm -rf "$package"; done
        find "$store" -type f -links 1 -exec rm -f {} +
        ;;
esac
