#!/bin/bash
# Holds the sources against the plan of the house (DESIGN.md): prints each breach, and ends with 1 if there is one.
#
#   tools/ci/check_house.sh
#
# It checks the rules that Bazel's visibility cannot state: includes against the arrows between the rooms or without
# "reprise/", public targets that no README names, LibTorch in device files, claims of docs/features.txt without tests,
# pages with links, code or options that are not there, public headers without comments, planted faults
# (tools/mutations) that no longer fit the sources, files and rooms that have become too large, and in a git repository
# prose: the share of sentences that tools/ci/prose_lint.py flags, and the length of commit subjects.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." || exit 1

breaches=0

# breach TEXT LINES: counts and prints LINES under TEXT, if there are any.
breach() {
  [[ -n $2 ]] || return 0
  printf '%s\n%s\n' "$1" "$2"
  breaches=$((breaches + 1))
}

# sources FOLDER...: the C++ and CUDA files there.
sources() {
  local folder
  for folder in "$@"; do
    find "$folder" -name bazel-\* -prune -o -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print
  done | LC_ALL=C sort
}

# includes_of PATTERN FOLDER...: lines that include a header whose path matches.
includes_of() {
  local pattern=$1
  shift
  sources "$@" | xargs grep -HnE "^#include \"(reprise/)?($pattern)" /dev/null
}

# include_paths_test.cc includes another base/ids.h, to test that both are found.
breach 'Includes of headers of a room without "reprise/":' \
  "$(sources attention base cache distributed engine examples graphs runner tests tools |
    xargs grep -HnE '^ *# *include "(attention|base|cache|distributed|engine|(examples/)?(hf|models)|graphs|runner)/' /dev/null |
    grep -v '^examples/embed/include_paths_test.cc:')"
breach "base includes what stands on it:" "$(includes_of '(attention|cache|distributed|graphs|runner|engine|hf|models|examples)/' base)"
breach "cache includes what stands on it:" "$(includes_of '(attention|distributed|graphs|runner|engine|hf|models|examples)/' cache)"
breach "graphs includes more than base:" "$(includes_of '(attention|cache|distributed|runner|engine|hf|models|examples)/' graphs)"
breach "distributed includes more than base:" "$(includes_of '(attention|cache|graphs|runner|engine|hf|models|examples)/' distributed)"
breach "attention includes what stands on it:" "$(includes_of '(distributed|graphs|runner|engine|hf|models|examples)/' attention)"
breach "attention knows the cache's allocator:" "$(includes_of 'cache/(blocks|prefix)/' attention)"
breach "runner includes what stands on it:" "$(includes_of '(engine|hf|models|examples)/' runner)"
breach "engine includes what stands on it:" "$(includes_of '(hf|models|examples)/' engine)"
breach "cache/prefix includes more than base:" "$(includes_of 'cache/(blocks|tables|storage|ops)/' cache/prefix)"
breach "cache/tables includes its neighbours:" "$(includes_of 'cache/(blocks|prefix|storage|ops)/' cache/tables | grep -v '_test.cc:')"
breach "cache/storage includes its neighbours:" "$(includes_of 'cache/(blocks|prefix|ops)/' cache/storage | grep -v '_test.cc:')"
breach "runner/sampling knows slots:" "$(includes_of 'runner/slots/' runner/sampling)"
breach "LibTorch in device files:" \
  "$(sources attention cache base distributed graphs runner engine | grep -E '\.cuh?$' | xargs grep -lE '#include [<"](torch|ATen|c10)/' /dev/null)"

# Public targets by label, one a line.
public_targets() {
  local build
  find base cache attention distributed graphs runner engine examples/hf examples/models -name BUILD | LC_ALL=C sort | while read -r build; do
    awk -v folder="$(dirname "$build")" '
      /^[a-z_]+\(/ { is_code = !/^filegroup/ }
      /^    name = / { split($0, part, "\""); name = part[2] }
      is_code && /^    visibility = \["\/\/visibility:public"\]/ { print "//" folder ":" name }
    ' "$build"
  done
}

unnamed=$(public_targets | while read -r target; do
  package=${target%%:*} name=${target##*:} room=${target#//}
  # "//cache/ops:write_kv", ":write_kv" in a row of its package, or "//engine" for "//engine:engine".
  row=$(grep -E "^\| .*$package[:,\`]" "${room%%[/:]*}/README.md" | grep -E "[:]$name[,\`]|//[a-z_/]*${package##*/}[,\`]")
  grep -qE "[:]$name[,\`]" <<<"$row" || { [[ ${package##*/} == "$name" ]] && grep -qE "$package[,\`]" <<<"$row"; } ||
    echo "$target"
done)
breach "Public targets that the README of their room does not name:" "$unnamed"

listed=$(sed -n 's/^    "\(.*\)",$/\1/p' tools/install/public_targets.bzl | grep -v '_cuda$' | LC_ALL=C sort)
breach "Public targets that tools/install/public_targets.bzl lacks, or that are none:" \
  "$(LC_ALL=C comm -3 <(public_targets | grep -vE '_cuda$|\.so$' | LC_ALL=C sort) <(printf '%s\n' "$listed"))"

breach "Claims of docs/features.txt that its tests do not hold:" "$(tools/ci/features.py 2>&1)"

breach "Pages of which something is not true:" "$(tools/ci/docs.py 2>&1)"

breach "Public headers that lack comments:" "$(tools/ci/docstrings.py 2>&1)"

breach "Drawings that are not what is drawn:" "$(docs/pictures/draw.py --check 2>&1)"

breach "Faults of tools/mutations/faults.txt that no longer fit the sources:" "$(tools/mutations/mutate.py --check 2>&1)"

breach "Files of more than 800 lines:" \
  "$(sources attention cache base distributed graphs runner engine examples tests | xargs wc -l | awk '$2 != "total" && $1 > 800')"
breach "Rooms of more than 60 sources:" \
  "$(sources attention cache base distributed graphs runner engine examples tests | xargs -n 1 dirname | sort | uniq -c | awk '$1 > 60')"

# What the program's users read, as the sources have it: literals that go on in the next line are one.
literals=$({ sources base cache attention distributed graphs runner engine examples | grep -v '_test\.cc$' && find third_party -name '*.bzl'; } |
  xargs cat | tr -d '\n' | sed -E 's/" *(\+ *)?"//g')
quoted=$(sed -nE 's/^\| `([^`]+)` \|.*/\1/p' docs/troubleshooting.md | LC_ALL=C sort -u)
breach "Messages of docs/troubleshooting.md that no source has:" \
  "$(while IFS= read -r message; do
    [[ $literals == *"$message"* ]] || echo "$message"
  done <<<"$quoted")"

if git rev-parse --git-dir >/dev/null 2>&1; then
  breach "Prose that is not plain English (tools/ci/prose_lint.py --base main shows the new sentences):" \
    "$(tools/ci/prose_lint.py --limit tools/ci/prose_limit.txt 2>&1)"
  breach "Commit subjects of more than 72 characters:" "$(tools/ci/commit_subjects.sh 2>&1)"
fi

((breaches == 0)) && echo "the house is as DESIGN.md draws it"
exit $((breaches > 0))
