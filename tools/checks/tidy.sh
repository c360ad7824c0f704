#!/bin/bash
# usage: tidy.sh BUILD_FOLDER [FILES]
# Runs clang-tidy on FILES, or on every source file that BUILD_FOLDER's compile_commands.json knows how to compile.
# The naming rules alone take a fraction of the time, and so are part of the tests (names.py).
set -uo pipefail
build=$(cd "$1" && pwd) || exit 1
shift
cd "$(dirname "$0")/../.." || exit 1

pinned=$(sed -n 's/^clang-tidy==\([^ ]*\).*/\1/p' requirements.in)
clang_tidy=$PWD/.venv/bin/clang-tidy
if ! "$clang_tidy" --version 2>/dev/null | grep -q "version $pinned"; then
  echo "skipped: clang-tidy $pinned is not there; ./dev setup installs it"
  exit 77
fi

files=("$@")
if ((${#files[@]} == 0)); then
  mapfile -t files < <(sed -n 's/^ *"file": "\(.*\)",\?$/\1/p' "$build/compile_commands.json" | grep "^$PWD/" | sort -u)
fi
if ((${#files[@]} == 0)); then
  echo 'no file to check'
  exit 1
fi

# A header's complaints come once for each file that includes it; the count of hidden warnings on stderr is of no use.
complaints=$(printf '%s\n' "${files[@]}" |
  xargs -P "$(nproc)" -n 1 "$clang_tidy" -p "$build" --quiet 2>/dev/null) || status=$?
if ((${status:-0} != 0)); then
  printf '%s\n' "$complaints" | awk '/: (error|warning): /{shown = !seen[$0]++} shown'
  echo "clang-tidy has complaints about these ${#files[@]} files"
  exit 1
fi
echo "${#files[@]} files, nothing to complain about"
