#!/bin/bash
# wheel_test.sh WHEEL LIBRARY RUN_PYTHON_TEST VERSION: installs the wheel into a folder and runs wheel_test.py there.
set -euo pipefail
wheel=$1 library=$2 run_python_test=$3 version=$4
[[ $(basename "$wheel") == "reprise_ops-$version-py3-none-linux_x86_64.whl" ]] ||
  { echo "unexpected name: $wheel" >&2 && exit 1; }
# pip reads a link's target's name.
cp -L "$wheel" "$TEST_TMPDIR/"
wheel=$TEST_TMPDIR/$(basename "$wheel")
if python3 -m pip --version >/dev/null 2>&1; then
  PIP_DISABLE_PIP_VERSION_CHECK=1 python3 -m pip install --quiet --no-index --no-deps --no-compile \
    --target "$TEST_TMPDIR/installed" "$wheel"
else
  # A system whose Python has no pip: an installation is the archive, unpacked.
  python3 -m zipfile -e "$wheel" "$TEST_TMPDIR/installed"
fi
grep -q "^Requires-Dist: torch==" "$TEST_TMPDIR"/installed/reprise_ops-*.dist-info/METADATA
# That script gives a Python test the library; this one takes the folder.
cat >"$TEST_TMPDIR/test.py" <<END
import os, runpy, sys
sys.argv = ["wheel_test.py", "$TEST_TMPDIR/installed"]
runpy.run_path("$PWD/tools/wheel/wheel_test.py", run_name="__main__")
END
"$run_python_test" "$library" "$TEST_TMPDIR/test.py"
