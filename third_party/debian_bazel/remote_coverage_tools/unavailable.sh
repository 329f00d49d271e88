#!/bin/sh
echo "Coverage reports need a Bazel newer than Debian's 4.2.3." >&2
exit 1
