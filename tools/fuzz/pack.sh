#!/usr/bin/env bash
# Gathers the fuzzers of build/fuzz, with what they read, into a folder that can be taken to another machine.
#
#   usage: tools/fuzz/pack.sh FOLDER
#
# ./dev fuzz builds them. FOLDER gets bin/, lib/ with the libraries that another machine may lack, seeds/, dictionaries/ and corpus/.
# tools/fuzz/run_all.py FOLDER RECORD.json runs them there, with the sources' folders tools/fuzz and tools/device beside it.
set -euo pipefail

(($# == 1)) || { sed -n '2,7p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$1
rm -rf "$folder/bin" "$folder/lib" "$folder/seeds" "$folder/dictionaries" "$folder/corpus"
mkdir -p "$folder/bin" "$folder/lib" "$folder/dictionaries" "$folder/corpus"
cp "$root"/build/fuzz/bin/fuzz_* "$folder/bin/"
# Reports of sanitizers name functions by symbols, and lines alone by debug information, which is most of a program.
strip --strip-debug "$folder"/bin/*
ldd "$folder"/bin/* | awk '$3 ~ /libhwy/ { print $3 }' | sort -u | while read -r library; do cp -L "$library" "$folder/lib/"; done
cp -r "$root/fuzz/seeds" "$folder/seeds"
cp "$root"/fuzz/*.dict "$folder/dictionaries/"
[[ ! -d $root/build/fuzz/corpus ]] || cp -r "$root/build/fuzz/corpus/." "$folder/corpus/"
du -sh "$folder"
