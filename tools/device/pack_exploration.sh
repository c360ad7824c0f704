#!/usr/bin/env bash
# Gathers what it takes to explore a version of cuDNN on a machine with a GPU that has another one (some 55 MB).
#
#   usage: tools/device/pack_exploration.sh BUILD FOLDER VERSION
#
# BUILD is build/release; VERSION is one that PyPI has, such as 9.28.0. FOLDER gets explorer.tar.xz (scoremod_cudnn, the libraries that
# another machine may lack, and a file `commit`) and cudnn.tar.xz. On the machine: explore_version.sh FOLDER OUTPUT.json. Of cuDNN's
# libraries the fused attention needs three, which nvidia-cudnn-jit-cu13 has by themselves; where that is not at VERSION, they are taken out
# of nvidia-cudnn-cu13 (a download of some 520 MB).
set -euo pipefail

(($# == 3)) || { sed -n '2,10p' "$0" >&2; exit 2; }
build=$1 folder=$2 version=$3
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The filter for x86 code takes some MB off; Python's tarfile reads it.
compress() { xz -T0 --x86 --lzma2=preset=9,dict=64MiB; }

mkdir -p "$folder" "$work/explorer/bin" "$work/explorer/lib"
cp "$build/bin/scoremod_cudnn" "$work/explorer/bin/"
# Highway's is not a part of every system.
ldd "$build/bin/scoremod_cudnn" | awk '$3 ~ /libhwy/ { print $3 }' |
  while read -r library; do cp -L "$library" "$work/explorer/lib/"; done
strip --strip-unneeded "$work"/explorer/bin/* "$work"/explorer/lib/*.so* 2>/dev/null || true
git -C "$root" describe --always --dirty >"$work/explorer/commit"
tar -C "$work/explorer" -c bin lib commit | compress >"$folder/explorer.tar.xz"

for package in nvidia-cudnn-jit-cu13 nvidia-cudnn-cu13; do
  python3 -m pip download --quiet --disable-pip-version-check --no-deps -d "$work" "$package==$version.*" || continue
  break
done
wheels=("$work"/*.whl)
[[ -e ${wheels[0]} ]] || { echo "PyPI has no cuDNN $version" >&2; exit 1; }
libraries=(libcudnn.so.9 libcudnn_graph.so.9 libcudnn_engines_runtime_compiled.so.9)
for library in "${libraries[@]}"; do python3 -m zipfile -l "${wheels[0]}" | awk -v end="/lib/$library" 'index($1, end) { print $1 }'; done |
  while read -r member; do
    python3 -c 'import shutil, sys, zipfile
wheel, member, out = sys.argv[1:]
with zipfile.ZipFile(wheel).open(member) as source, open(out, "wb") as target: shutil.copyfileobj(source, target)' \
      "${wheels[0]}" "$member" "$work/$(basename "$member")"
  done
tar -C "$work" -c "${libraries[@]}" | compress >"$folder/cudnn.tar.xz"
du -sh "$folder"
