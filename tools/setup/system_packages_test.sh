#!/bin/bash
# Which packages are missing, and their installation, with an apt-get that installs nothing.
set -uo pipefail
for part in testing report system_packages; do
  source "tools/setup/$part.sh"
done

log=$work/apt.log
stand_in bazel </dev/null
stand_in g++ </dev/null
stand_in cmake </dev/null
stand_in make </dev/null
stand_in pkg-config </dev/null
stand_in apt-get <<'END'
#!/bin/bash
echo "$*"
[[ $* != *unheard-of* ]] || { echo "E: Unable to locate package unheard-of" && exit 100; }
END

include_dirs=("$work/include")
run missing_packages bazel ""
expect_equal "$(tr '\n' ' ' <<<"$output")" \
  "libabsl-dev libgoogle-glog-dev libgtest-dev libgmock-dev libbenchmark-dev nlohmann-json3-dev libpcre2-dev libcli11-dev libutf8proc-dev libedit-dev libgloo-dev " \
  "every library is missing where there is no header"
for header in absl/base/config.h glog/logging.h gtest/gtest.h gmock/gmock.h benchmark/benchmark.h nlohmann/json.hpp pcre2.h CLI/CLI.hpp utf8proc.h histedit.h gloo/context.h; do
  mkdir -p "$work/include/$(dirname "$header")"
  touch "$work/include/$header"
done
run missing_packages bazel ""
expect_equal "$output" "" "nothing is missing"
run missing_packages bazel clang-77
expect_equal "$output" clang-77 "a clang that is wanted"
stand_in clang-77 </dev/null
run missing_packages bazel clang-77
expect_equal "$output" "" "a clang that is there"
have_command() { [[ $1 != make ]] && command -v "$1" >/dev/null; }
run missing_packages bazel ""
expect_equal "$output" make "CMake without make"
have_command() { command -v "$1" >/dev/null; }
run missing_packages no-such-bazel ""
expect_output "bazel-bootstrap" "no Bazel"

is_root() { true; }
run install_packages "$log" libabsl-dev g++
expect_status 0 "as root"
expect_equal "$(<"$log")" "-o DPkg::Lock::Timeout=600 install -y --no-install-recommends libabsl-dev g++" "as root"
run install_packages "$log" unheard-of
expect_status 36 "a package that apt does not know"
expect_output "E: Unable to locate package unheard-of" "a package that apt does not know"
REPRISE_APT=never run install_packages "$log" libabsl-dev
expect_status 36 "REPRISE_APT=never"
expect_output "missing: libabsl-dev" "REPRISE_APT=never"

is_root() { false; }
stand_in sudo <<'END'
#!/bin/bash
exit 1
END
run install_packages "$log" libabsl-dev g++
expect_status 36 "a sudo that asks for a password"
expect_output "sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends libabsl-dev g++'" "a sudo that asks for a password"
stand_in sudo <<'END'
#!/bin/bash
shift
exec "$@"
END
run install_packages "$log" libabsl-dev
expect_status 0 "with a sudo that asks for nothing"

have_command() { [[ $1 != sudo ]]; }
run install_packages "$log" libabsl-dev
expect_output "installs them: su -c 'apt-get update" "no sudo"

have_command() { [[ $1 != apt-get ]]; }
run install_packages "$log" libabsl-dev
expect_output "these Debian packages, or what they are called here, have to be installed first: libabsl-dev" "no apt"

finish
