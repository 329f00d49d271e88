# Installs the toolkit into $prefix, and defines functions for the tests of an installation. Sourced.

source tools/setup/not_run.sh

# shellcheck disable=SC2034
prefix=$TEST_TMPDIR/prefix
tools/install/install --prefix "$prefix"

fail() {
  echo "$1" >&2
  exit 1
}

# Whether the toolkit was built for CUDA.
has_cuda() {
  grep -q REPRISE_WITH_CUDA "$prefix/lib/cmake/Reprise/RepriseConfig.cmake"
}

# Sets the arrays cflags and libs to the flags that pkg-config prints.
read_flags() {
  export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
  read -ra cflags < <(pkg-config --cflags reprise)
  read -ra libs < <(pkg-config --libs reprise)
}
