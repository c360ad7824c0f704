#!/bin/sh
# Checks that every C and C++ file is formatted as .clang-format says; with --fix, formats them.
# The version of clang-format is pinned in requirements.in, because versions differ in what they make of one style.
cd "$(dirname "$0")/../.." || exit 1

pinned=$(sed -n 's/^clang-format==//p' requirements.in)
clang_format=.venv/bin/clang-format
[ -x "$clang_format" ] || clang_format=clang-format
case "$("$clang_format" --version 2>/dev/null)" in
  *" $pinned"*) ;;
  *)
    echo "skipped: clang-format $pinned is not there; ./dev setup installs it"
    exit 77
    ;;
esac

mode='--dry-run --Werror'
[ "${1:-}" = --fix ] && mode=-i

files=$(find include src tools bench examples fuzz bindings tests \
  \( -name '*.cpp' -o -name '*.hpp' -o -name '*.c' -o -name '*.h' -o -name '*.inl' \
  -o -name '*.cuh' \) 2>/dev/null | sort)
if [ -z "$files" ]; then
  echo 'no C or C++ file found'
  exit 1
fi
# shellcheck disable=SC2086  # lists of words; no file of the project has a space in its name
if ! "$clang_format" $mode --style=file $files; then
  echo 'run: ./dev format'
  exit 1
fi
