#!/bin/bash
# The options for each version of Bazel.
set -uo pipefail
for part in testing report bazel_flags; do
  source "tools/setup/$part.sh"
done

unset REPRISE_MODULES

# version_of TEXT: what is made of a Bazel that answers TEXT.
version_of() {
  printf '#!/bin/sh\necho "%s"\n' "$1" | stand_in bazel
  bazel_version bazel
}

# flags VERSION WORKSPACE [COMPILER]
flags() {
  set_bazel_flags "$1" /reprise /cache "$2" "${3:-}"
  echo "${startup_flags[*]} | ${repository_flags[*]} | ${build_flags[*]}"
}

expect_equal "$(version_of 'bazel no_version')" debian "Debian's Bazel"
expect_equal "$(version_of 'bazel 6.5.0')" 6 "Bazel 6"
expect_equal "$(version_of 'bazel 7.4.1- (@non-git)')" 7 "a Bazel 7 built by hand"
expect_equal "$(bazel_version "$work/no-such-bazel")" "" "no Bazel"

run flags 7 /reprise
expect_equal "$output" " | --noenable_bzlmod | --disk_cache=/cache/bazel" "Bazel 7"
run flags 9 /reprise clang-16
expect_equal "$output" \
  " | --repo_env=CC=clang-16 | --disk_cache=/cache/bazel --copt=-Wno-unused-command-line-argument" "a compiler"
run flags 8 /reprise
expect_output "--enable_workspace" "Bazel 8"
run flags 9 /reprise
expect_equal "$output" " |  | --disk_cache=/cache/bazel" "Bazel 9, which knows MODULE.bazel only"
mkdir "$work/module"
touch "$work/module/MODULE.bazel"
run flags 7 "$work/module"
expect_output "configurations.bazelrc | --enable_bzlmod | " "a workspace with MODULE.bazel alone, Bazel 7"
run flags 6 "$work/module"
expect_output "configurations.bazelrc | --enable_bzlmod | " "a workspace with MODULE.bazel alone, Bazel 6"
touch "$work/module/WORKSPACE"
run flags 8 "$work/module"
expect_output "configurations.bazelrc | --noenable_bzlmod --enable_workspace | " "a workspace with both, Bazel 8"
for version in 7 8; do
  REPRISE_MODULES=yes run flags "$version" "$work/module"
  expect_output "configurations.bazelrc | --enable_bzlmod | " "REPRISE_MODULES=yes, Bazel $version"
done
REPRISE_MODULES=yes run flags 7 /elsewhere
expect_output "| --noenable_bzlmod | " "REPRISE_MODULES=yes without a MODULE.bazel"
REPRISE_MODULES=1 run flags 7 "$work/module"
expect_status 36 "REPRISE_MODULES=1"
expect_output "REPRISE_MODULES must be yes or no: it is '1'." "REPRISE_MODULES=1"
run flags debian /reprise
expect_output "--override_repository=rules_cc=/reprise/third_party/debian_bazel/rules_cc" "Debian's Bazel"
run flags debian /elsewhere
[[ $output == "--bazelrc=/reprise/tools/bazel/configurations.bazelrc | --override_repository="* ]] ||
  fail "Debian's Bazel reads another workspace's own options, and the configurations"
for version in 6 7 8 9; do
  run flags "$version" /elsewhere
  expect_output "--bazelrc=/reprise/tools/bazel/configurations.bazelrc | " "another workspace, Bazel $version"
done

# What such a workspace is given defines each --config that there is, and nothing that holds without one.
configurations=tools/bazel/configurations.bazelrc
for name in cpu gcc asan ubsan asan_ubsan tsan fuzz; do
  grep -q "^build:$name --" "$configurations" || fail "--config=$name is not defined in $configurations"
done
expect_equal "$(grep -v -e '^#' -e '^$' -e '^\(build\|test\):[a-z_]* --' "$configurations")" "" \
  "options that every build in another workspace would get"
for name in $(sed -n 's/.* --config=\([a-z_]*\)$/\1/p' "$configurations"); do
  grep -q "^build:$name --" "$configurations" || fail "$configurations uses --config=$name without defining it"
done

for version in 3 10 '' 'no such'; do
  run flags "$version" /reprise
  expect_status 36 "Bazel '$version'"
  expect_output "Bazel must be of version 6 to 9" "Bazel '$version'"
done

finish
