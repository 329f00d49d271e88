#!/bin/bash
# run_python_test.sh LIBRARY TEST.py: runs a Python test with the PyTorch that LIBRARY is linked
# with. A LibTorch without Python (the C++ archive) cannot run the test.
set -euo pipefail
source tools/setup/not_run.sh
library=$1
test=$2
torch=$(ldd "$library" | awk '$1 == "libtorch_cpu.so" { print $3 }')
torch=${torch%/lib/libtorch_cpu.so}
[ -n "$torch" ] || { echo "$library is not linked with LibTorch" >&2; exit 1; }
if [ ! -e "$torch/__init__.py" ]; then
  not_run "LibTorch without Python"
fi
# Tries the interpreter of PyTorch's environment first, then other interpreters of the same version.
version=$(basename "$(dirname "$(dirname "$(readlink -f "$torch")")")")
for python in "$(readlink -f "$torch")/../../../../bin/python" "$version" python3; do
  if PYTHONPATH=$(dirname "$torch") "$python" -c 'import torch' 2>/dev/null; then
    PYTHONPATH=$(dirname "$torch") exec "$python" -W ignore::UserWarning "$test" "$library"
  fi
done
not_run "no Python can import the torch that LibTorch is of"
