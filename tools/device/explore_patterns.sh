#!/usr/bin/env bash
# Runs the pattern explorer on a machine with a GPU and writes its table.
#
#   usage: tools/device/explore_patterns.sh BINARY OUTPUT.json [EXPLORER ARGUMENTS]
#
# BINARY is build/release/bin/scoremod_cudnn; it may have been built on another machine.
set -euo pipefail

(($# >= 2)) || { sed -n '2,8p' "$0" >&2; exit 2; }
binary=$1 output=$2
shift 2

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
exec "$binary" explore -o "$output" --machine "$machine" "$@"
