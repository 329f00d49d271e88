# The compiler of the CPU build: clang, which takes half of g++'s time with the precompiled headers
# (docs/building.md). The CUDA build takes g++, because nvcc does; so do the sanitizers and embedders'
# workspaces. Sourced by bazelw, after device.sh.

# clang 16 is the first that captures structured bindings in lambdas, and that compiles the <ranges> of GCC 12. From 18
# on clang mangles constraints of templates otherwise than the g++ that LibTorch is compiled by: programs do not link.
clang_versions='16 17'

# Prints the name of a clang of this machine of these versions, or nothing.
find_clang() {
  local version
  version=$(clang -dumpversion 2>/dev/null) || version=
  if [[ " $clang_versions " == *" ${version%%.*} "* ]]; then
    echo clang
    return
  fi
  for version in $clang_versions; do
    if command -v "clang-$version" >/dev/null; then
      echo "clang-$version"
      return
    fi
  done
}

# choose_compiler DEVICE OWN ARGUMENTS...: sets `compiler` to a clang, or leaves it empty if Bazel is to find the compiler
# ($CC, or gcc). DEVICE: cpu or cuda. OWN: yes if the command runs in the workspace of Reprise. ARGUMENTS: the arguments
# of the Bazel command.
# If clang is needed but not installed, `compiler` is "clang-16", a package of Debian 12 and Ubuntu 24.04; with
# REPRISE_APT=never it is empty.
choose_compiler() {
  local device=$1 own=$2
  shift 2
  compiler=
  local options
  options=$(options_of "$@")
  [[ $device == cpu && -z ${CC:-} ]] || return 0
  # Only clang has libFuzzer.
  [[ $own == yes ]] || grep -q -x -e '--config=fuzz' <<<"$options" || return 0
  ! grep -q -x -E -e '--config=(gcc|sanitizer|asan|ubsan|asan_ubsan|tsan)' <<<"$options" || return 0
  compiler=$(find_clang)
  [[ -n $compiler || ${REPRISE_APT:-} == never ]] || compiler=clang-${clang_versions%% *}
}
