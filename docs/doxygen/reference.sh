#!/bin/bash
# Writes the API reference as HTML, from the comments of the public headers, by Doxygen:
#
#   bazel run //docs:reference [-- --out DIR]      into DIR, by default ~/.cache/reprise/reference
#
# Doxygen is installed by apt if it is missing (REPRISE_APT=never: not). Nothing is written into the tree.
set -euo pipefail
root=${BUILD_WORKSPACE_DIRECTORY:-$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)}
out=
while (($# > 0)); do
  case $1 in
    --out)
      (($# > 1)) || { echo "reference: --out needs a folder" >&2 && exit 2; }
      out=$2
      shift 2
      ;;
    *) echo "reference: expected --out DIR, got '$1'" >&2 && exit 2 ;;
  esac
done
out=${out:-${REPRISE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/reprise}/reference}
out=$(cd "${BUILD_WORKING_DIRECTORY:-$PWD}" && realpath -m "$out")
case $out/ in
  "$root"/*) echo "reference: --out must be outside of $root: got $out" >&2 && exit 2 ;;
esac
cd "$root"
source tools/setup/report.sh
source tools/setup/system_packages.sh
mkdir -p "$out"
have_command doxygen || install_packages "$out/apt.log" doxygen

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mapfile -t headers < <(tools/ci/docstrings.py --list)
# Beside the include path of each header.
docs/doxygen/filter.py --out "$work/reprise" "${headers[@]}"
cp docs/doxygen/mainpage.dox "$work"
doxygen - >"$out/doxygen.log" 2>&1 <<END_CONFIGURATION || { echo "reference: doxygen failed; see $out/doxygen.log" >&2 && exit 1; }
PROJECT_NAME = Reprise
PROJECT_NUMBER = $(sed -n 's/^VERSION = "\(.*\)"$/\1/p' tools/version.bzl)
PROJECT_BRIEF = "a C++ toolkit for serving language models on LibTorch"
OUTPUT_DIRECTORY = "$out"
INPUT = "$work"
RECURSIVE = YES
FILE_PATTERNS = *.h *.dox
MARKDOWN_SUPPORT = NO
STRIP_FROM_PATH = "$work"
STRIP_FROM_INC_PATH = "$work"
VERBATIM_HEADERS = NO
EXTRACT_ALL = YES
EXTRACT_LOCAL_CLASSES = NO
HIDE_UNDOC_RELATIONS = NO
JAVADOC_AUTOBRIEF = YES
SORT_MEMBER_DOCS = NO
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = REPRISE_HOST_DEVICE= REPRISE_WITH_CUDA
GENERATE_LATEX = NO
GENERATE_TREEVIEW = YES
HTML_TIMESTAMP = NO
HAVE_DOT = NO
QUIET = YES
WARN_IF_UNDOCUMENTED = NO
WARN_IF_DOC_ERROR = YES
END_CONFIGURATION
echo "${#headers[@]} headers: $out/html/index.html"
