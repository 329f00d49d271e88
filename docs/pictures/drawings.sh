#!/bin/bash
# Writes docs/pictures/*.svg: bazel run //docs:drawings. See docs/pictures/draw.py.
set -euo pipefail
cd "${BUILD_WORKSPACE_DIRECTORY:-$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../..}"
exec python3 docs/pictures/draw.py "$@"
