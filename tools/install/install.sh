#!/bin/bash
# Lays the toolkit out for projects that do not build with Bazel.
#
#   ./bazelw run //:install -- --prefix DIR
#
#   DIR/include/reprise/           headers, included as "reprise/engine/engine.h"; those of examples/hf as "reprise/hf/weights.h"
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
# By the path that users include. Headers that no public header includes, some of which need CUDA, stay out.
declare -A source_of
while read -r header path; do source_of[$path]=$header; done <"$package/headers.txt"

# install_header PATH: installs a header of the toolkit and the headers that it includes.
install_header() {
  local path=$1 included
  local header=${source_of[$path]:-}
  [[ -n $header ]] || return 0
  unset "source_of[$path]"
  install -D -m 644 "$header" "$prefix/include/$path"
  while read -r included; do
    install_header "$included"
  done < <(sed -nE 's,^ *# *include "([^"]+)".*,\1,p' "$header")
}
while read -r path; do install_header "$path"; done <"$package/public_headers.txt"
install -m 644 "$package/libreprise.a" "$prefix/lib/"
install -m 644 "$package"/RepriseConfig.cmake "$package"/RepriseConfigVersion.cmake "$prefix/lib/cmake/Reprise/"
sed "s|@PREFIX@|$prefix|" "$package/reprise.pc" >"$prefix/lib/pkgconfig/reprise.pc"
install -D -m 644 LICENSE "$prefix/share/doc/reprise/LICENSE"
echo "installed $(find "$prefix/include/reprise" -name '*.h' | wc -l) headers and libreprise.a into $prefix"
