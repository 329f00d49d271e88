#!/bin/bash
# Lays the toolkit out for projects that do not build with Bazel.
#
#   ./bazelw run //:install -- --prefix DIR
#
#   DIR/include/reprise/           headers, included as "engine/engine.h"
#   DIR/lib/libreprise.a           everything of the public targets, for the device that was built for
#   DIR/lib/cmake/Reprise/         find_package(Reprise), target reprise::reprise
#   DIR/lib/pkgconfig/reprise.pc   pkg-config --cflags --libs reprise
#
# A prefix that holds an earlier installation loses that one's headers first.
set -euo pipefail

prefix=
while (($# > 0)); do
  case $1 in
    --prefix)
      prefix=${2:-}
      (($# == 1)) || shift
      ;;
    --prefix=*) prefix=${1#*=} ;;
    *) echo "install: expected --prefix DIR, got '$1'" >&2 && exit 2 ;;
  esac
  shift
done
[[ -n $prefix ]] || { echo "install: --prefix must name a folder" >&2 && exit 2; }
# bazel run starts this in its own folder.
[[ $prefix == /* ]] || prefix=${BUILD_WORKING_DIRECTORY:-$PWD}/$prefix
mkdir -p "$prefix"
prefix=$(cd "$prefix" && pwd)

package=tools/install/package
rm -rf "$prefix/include/reprise"
mkdir -p "$prefix/include/reprise" "$prefix/lib/cmake/Reprise" "$prefix/lib/pkgconfig"
while read -r header; do
  install -D -m 644 "$header" "$prefix/include/reprise/$header"
done <"$package/headers.txt"
install -m 644 "$package/libreprise.a" "$prefix/lib/"
install -m 644 "$package"/RepriseConfig.cmake "$package"/RepriseConfigVersion.cmake "$prefix/lib/cmake/Reprise/"
sed "s|@PREFIX@|$prefix|" "$package/reprise.pc" >"$prefix/lib/pkgconfig/reprise.pc"
install -D -m 644 LICENSE "$prefix/share/doc/reprise/LICENSE"
echo "installed $(find "$prefix/include/reprise" -name '*.h' | wc -l) headers and libreprise.a into $prefix"
