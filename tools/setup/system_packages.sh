# Finds which of the system's packages are missing, and installs them by apt. Sourced by bazelw.

# Where headers of the system are looked for.
include_dirs=(/usr/include /usr/local/include)

have_header() {
  local folder
  for folder in "${include_dirs[@]}"; do
    [[ -e $folder/$1 ]] && return 0
  done
  return 1
}

have_command() {
  command -v "$1" >/dev/null 2>&1
}

is_root() {
  ((EUID == 0))
}

# Prints the Debian packages that are missing, one a line. $1 is the Bazel to be used, $2 a clang, or empty.
missing_packages() {
  local bazel=$1 debian_bazel=/usr/share/bazel
  if ! have_command "$bazel"; then
    printf '%s\n' bazel-bootstrap bazel-rules-java bazel-rules-proto bazel-platforms bazel-skylib
  elif [[ $(command -v "$bazel") == /usr/bin/bazel && -e $debian_bazel/A-server.jar ]]; then
    [[ -e $debian_bazel/rules/java ]] || echo bazel-rules-java
    [[ -e $debian_bazel/rules/proto ]] || echo bazel-rules-proto
    [[ -e $debian_bazel/tools/platforms ]] || echo bazel-platforms
    [[ -e $debian_bazel/tools/skylib ]] || echo bazel-skylib
  fi
  have_command g++ || echo g++
  [[ -z $2 ]] || have_command "$2" || echo "$2"
  # For the test of an installation. Debian's cmake does not bring make.
  have_command cmake || echo cmake
  have_command make || echo make
  have_command pkg-config || echo pkg-config
  have_header absl/base/config.h || echo libabsl-dev
  have_header glog/logging.h || echo libgoogle-glog-dev
  have_header gtest/gtest.h || echo libgtest-dev
  have_header gmock/gmock.h || echo libgmock-dev
  have_header benchmark/benchmark.h || echo libbenchmark-dev
  have_header nlohmann/json.hpp || echo nlohmann-json3-dev
  have_header pcre2.h || echo libpcre2-dev
  have_header CLI/CLI.hpp || echo libcli11-dev
  have_header utf8proc.h || echo libutf8proc-dev
  # To edit lines in decode chat.
  have_header histedit.h || echo libedit-dev
  # Headers only: LibTorch has the library in itself.
  have_header gloo/context.h || echo libgloo-dev
}

have_free_sudo() {
  have_command sudo && sudo -n true 2>/dev/null
}

# Whether install_packages() can do more than say what to type.
may_install() {
  [[ ${REPRISE_APT:-} != never ]] && have_command apt-get && { is_root || have_free_sudo; }
}

# Installs Debian packages, as root or through a sudo that asks for no password; else says which line
# would do it. REPRISE_APT=never leaves the system alone.
install_packages() {
  local log=$1 command=(apt-get)
  shift
  local by_hand="apt-get update && apt-get install -y --no-install-recommends $*"
  have_command apt-get ||
    die "these Debian packages, or what they are called here, have to be installed first: $*"
  if [[ ${REPRISE_APT:-} == never ]]; then
    die "REPRISE_APT=never, and these packages are missing: $*"
  elif ! is_root; then
    if have_free_sudo; then
      command=(sudo -n env DEBIAN_FRONTEND=noninteractive apt-get)
    else
      local become_root=sudo\ sh
      have_command sudo || become_root=su
      die "some packages are missing; this line installs them: $become_root -c '$by_hand'"
    fi
  fi
  export DEBIAN_FRONTEND=noninteractive
  say "installing by apt: $*"
  # A fresh machine has no package lists. An update that fails does not matter if the lists suffice.
  [[ -n ${apt_lists_are_new:-} ]] || run_logged "$log.update" "${command[@]}" update || true
  apt_lists_are_new=yes
  run_logged "$log" "${command[@]}" -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "$@" ||
    die "apt could not install $* ($(apt_reason "$log" "$log.update")); the whole output is in $log"
}

# The first complaint in apt's output.
apt_reason() {
  local line
  line=$(grep -h -m 1 -E '^(E|Err|W):' "$@" 2>/dev/null | head -n 1)
  echo "${line:-no reason given}"
}

# Prints the package that only --config=fuzz needs: the runtime libraries of the clang named $1.
missing_fuzz_packages() {
  local major=${1#clang-}
  [[ $major != clang ]] || major=$(clang -dumpversion | cut -d . -f 1)
  compgen -G "/usr/lib/llvm-*/lib/clang/$major*/lib/linux/libclang_rt.fuzzer-*.a" >/dev/null ||
    echo "libclang-rt-$major-dev"
}
