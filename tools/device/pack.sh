#!/usr/bin/env bash
# Gathers what the scripts of this folder run into a folder that can be taken to a machine with a GPU (some 35 MB).
#
#   usage: tools/device/pack.sh BUILD FOLDER
#
# BUILD is build/release. FOLDER gets bin/ and lib/, with the libraries that another machine may lack, and a file `commit`.
set -euo pipefail

(($# == 2)) || { sed -n '2,6p' "$0" >&2; exit 2; }
build=$1 folder=$2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

rm -rf "$folder/bin" "$folder/lib"
mkdir -p "$folder/bin" "$folder/lib"
for name in scoremod scoremod_bench scoremod_device_tests scoremod_cudnn; do
  cp "$build/bin/$name" "$folder/bin/"
done
cp -P "$build"/lib/libscoremod.so* "$folder/lib/"
mkdir "$folder/lib/scoremod"
cp "$build/lib/scoremod/build_plan" "$folder/lib/scoremod/"
for binding in libscoremod_jax.so scoremod_torch.abi3.so; do
  [[ ! -e $build/lib/$binding ]] || cp "$build/lib/$binding" "$folder/lib/"
done
# Highway's is not a part of every system.
ldd "$build/bin/scoremod_bench" | awk '$3 ~ /libhwy/ { print $3 }' | while read -r library; do cp -L "$library" "$folder/lib/"; done
strip --strip-unneeded "$folder"/bin/* "$folder"/lib/scoremod/* "$folder"/lib/*.so* 2>/dev/null || true
git -C "$root" describe --always --dirty >"$folder/commit" 2>/dev/null || true
du -sh "$folder"
