#!/bin/bash
# The version of tools/version.bzl is the one that other files repeat.
set -uo pipefail
source tools/setup/testing.sh

version=$(sed -n 's/^VERSION = "\(.*\)"$/\1/p' tools/version.bzl)
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "tools/version.bzl has VERSION = \"MAJOR.MINOR.PATCH\""
expect_equal "$(sed -n 's/^    version = "\([^"]*\)",.*/\1/p' MODULE.bazel | head -n 1)" "$version" "MODULE.bazel"
expect_equal "$(sed -n 's/^## \([0-9][0-9.]*\).*/\1/p' CHANGELOG.md | head -n 1)" "$version" "CHANGELOG.md's newest version"
expect_equal "$(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")$/\1/p' tools/install/package/RepriseConfigVersion.cmake)" \
  "$version" "the CMake package"
expect_equal "$(sed -n 's/^Version: //p' tools/install/package/reprise.pc)" "$version" "pkg-config's file"
finish
