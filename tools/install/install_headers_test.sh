#!/bin/bash
# Compiles each installed header by itself: 294 compilations, five minutes on two cores.
set -euo pipefail
[[ ${REPRISE_CHECK_HEADERS:-} == yes ]] || {
  source tools/setup/not_run.sh
  not_run "headers are compiled alone with --config=all_cases only"
}
source tools/install/installation.sh

! has_cuda || not_run "headers are compiled alone from the CPU build's installation only"
needs pkg-config g++
read_flags
tools/install/check_headers.py "$prefix/include" g++ "${cflags[@]}"
