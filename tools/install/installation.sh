# What the tests of an installation share. Sourced: installs the toolkit into $prefix.

source tools/setup/not_run.sh

# shellcheck disable=SC2034
prefix=$TEST_TMPDIR/prefix
tools/install/install --prefix "$prefix"

fail() {
  echo "$1" >&2
  exit 1
}

# Whether it is that of a CUDA build.
has_cuda() {
  grep -q REPRISE_WITH_CUDA "$prefix/lib/cmake/Reprise/RepriseConfig.cmake"
}

# Sets cflags and libs to what pkg-config answers for it.
read_flags() {
  export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
  read -ra cflags < <(pkg-config --cflags reprise)
  read -ra libs < <(pkg-config --libs reprise)
}
