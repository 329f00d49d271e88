# The options that each Bazel needs for this workspace. Sourced by bazelw.

# bazel_version BAZEL: prints the major version, or "debian" for Debian's 4.2.3, which has no number.
bazel_version() {
  local version
  version=$("$1" --version 2>/dev/null) || return 0
  version=${version#bazel }
  if [[ $version == no_version* ]]; then
    echo debian
  else
    echo "${version%%.*}"
  fi
}

# set_bazel_flags VERSION ROOT CACHE WORKSPACE COMPILER: fills startup_flags, repository_flags (for every command
# that reads BUILD files) and build_flags (for those that build, too). WORKSPACE is the one that is
# built: ROOT, or another one that takes the project as a repository. Where that has both a WORKSPACE and a
# MODULE.bazel, REPRISE_MODULES=yes takes the second. COMPILER is a clang, or empty for the one that Bazel finds.
set_bazel_flags() {
  local version=$1 root=$2 cache=$3 workspace=$4 compiler=$5 modules=no
  case ${REPRISE_MODULES:-no} in
    yes) [[ ! -e $workspace/MODULE.bazel ]] || modules=yes ;;
    no) [[ -e $workspace/WORKSPACE || ! -e $workspace/MODULE.bazel ]] || modules=yes ;;
    *) die "REPRISE_MODULES must be yes or no: it is '$REPRISE_MODULES'." ;;
  esac
  startup_flags=()
  # --config=cpu and the others, where no rc file of the workspace imports them.
  [[ $workspace == "$root" ]] || startup_flags+=("--bazelrc=$root/tools/bazel/configurations.bazelrc")
  repository_flags=()
  build_flags=("--disk_cache=$cache/bazel")
  if [[ -n $compiler ]]; then
    repository_flags+=("--repo_env=CC=$compiler")
    # clang has no use for an option that project.bazelrc gives to g++.
    build_flags+=(--copt=-Wno-unused-command-line-argument)
  fi
  case $version in
    debian)
      local system=/usr/share/bazel stubs=$root/third_party/debian_bazel
      repository_flags+=(
        "--override_repository=bazel_skylib=$system/tools/skylib"
        "--override_repository=platforms=$system/tools/platforms"
        "--override_repository=remote_coverage_tools=$stubs/remote_coverage_tools"
        "--override_repository=rules_cc=$stubs/rules_cc"
        "--override_repository=rules_java=$system/rules/java"
        "--override_repository=rules_proto=$system/rules/proto"
      )
      # Debian switches this on for the whole machine, which keeps every sandbox and prints its work.
      build_flags+=(--nosandbox_debug)
      ;;
    # Unless told otherwise it is the WORKSPACE, which needs nothing from a registry.
    6 | 7 | 8)
      if [[ $modules == yes ]]; then
        repository_flags+=(--enable_bzlmod)
      else
        repository_flags+=(--noenable_bzlmod)
        [[ $version != 8 ]] || repository_flags+=(--enable_workspace)
      fi
      ;;
    # Knows MODULE.bazel only.
    9) ;;
    *) die "Bazel must be of version 6 to 9, or Debian's 4.2.3: this one is '$version'; set REPRISE_BAZEL." ;;
  esac
}
