#!/bin/bash
# pack_sources.py and build.py over a project of three sources, with a bazelw that knows its plan, an nvcc that is g++
# and a LibTorch that is empty.
set -uo pipefail
source tools/setup/testing.sh
needs git
tools=$PWD/tools/gpu_build

project=$work/project
mkdir -p "$project/room" "$project/tests" "$work/python/torch/lib" "$work/root/bazel-out/k8/bin/room"
touch "$work/python/torch/__init__.py"
export PYTHONPATH=$work/python GIT_CONFIG_NOSYSTEM=1 HOME=$work
stand_in nvcc <<'END_NVCC'
#!/bin/bash
arguments=()
for argument; do
  case $argument in
    -O3 | -lineinfo | --expt-relaxed-constexpr | -Xcompiler=* | -gencode=* | -fmad=*) ;;
    *) arguments+=("$argument") ;;
  esac
done
exec g++ -x c++ "${arguments[@]}"
END_NVCC

cat >"$project/room/sum.h" <<'END'
int Sum(int a, int b);
END
cat >"$project/room/sum.cu" <<'END'
#include "room/sum.h"
#ifdef REPRISE_EVERY_LANE_ARRIVES
int Sum(int a, int b) { return a + b + 100; }
#else
int Sum(int a, int b) { return a + b + OFFSET; }
#endif
END
cat >"$project/tests/sum_test.cc" <<'END'
#include <cstdio>
#include "reprise/room/sum.h"
int Difference(int a, int b);
int main() { std::printf("%d %d\n", Sum(1, 2), Difference(3, 1)); }
END
echo 'int Difference(int a, int b) { return a - b; }' >"$work/root/bazel-out/k8/bin/room/difference.cc"

cat >"$project/bazelw" <<'END_BAZELW'
#!/usr/bin/env python3
import json, os, sys
print(os.environ["REPRISE_DEVICE"], *sys.argv[1:], file=open(os.environ["CALLS"], "a"))
if sys.argv[1] == "info":
    print(os.environ["WORK"] + "/root")
if sys.argv[1] != "aquery":
    sys.exit()
fragments, artifacts, actions = [], [], []
def add(mnemonic, output, *arguments):
    parent = None
    for label in output.split("/"):
        fragments.append({"id": len(fragments) + 1, "label": label, **({"parentId": parent} if parent else {})})
        parent = len(fragments)
    artifacts.append({"id": len(artifacts) + 1, "pathFragmentId": parent})
    actions.append({"mnemonic": mnemonic, "primaryOutputId": len(artifacts), "arguments": list(arguments)})
out = "bazel-out/k8/bin/"
add("NvccCompile", out + "room/sum.pic.o", "-O3", "-DOFFSET=4", "-gencode=arch=compute_90a", "-fmad=false", "-c",
    "room/sum.cu")
add("CppCompile", out + "room/difference.pic.o", "-O2", "-DNDEBUG", "-ffp-contract=off", "-mavx2", "-fopenmp", "-Wall",
    "-c", out + "room/difference.cc")
add("CppCompile", out + "tests/sum_test.pic.o", "-c", "tests/sum_test.cc")
add("CppCompile", out + "tests/other_test.pic.o", "-c", "tests/other_test.cc")
objects = [out + n for n in ("tests/sum_test.pic.o", "tests/other_test.pic.o", "room/difference.pic.o", "room/sum.pic.o")]
add("CppLink", out + "tests/gpu_all", "-o", out + "tests/gpu_all", "-Wl,--start-lib", *objects, "-Wl,--end-lib", "-lm")
add("CppLink", out + "tests/tests", "-o", out + "tests/tests", *objects[:1], *objects[2:])
add("CppLink", out + "room/tests", "-o", out + "room/tests", *objects[:1], *objects[2:])
add("CppLink", out + "room/libsum.a", "rcsD", *objects)
print(json.dumps({"pathFragments": fragments, "artifacts": artifacts, "actions": actions}))
END_BAZELW
chmod +x "$project/bazelw"
export CALLS=$work/calls WORK=$work
git -C "$project" init -q
git -C "$project" add -A

pack() { (cd "$project" && "$tools/pack_sources.py" "$@"); }
build() { "$tools/build.py" --jobs 2 "$work/out" "$@"; }

# ---- What is packed.

run pack --tests sum_test "$work/one" //tests:gpu_all
expect_equal "$status $output" "0 pack_sources: 3 compilations for gpu_all" "a plan"
expect_equal "$(cut -d ' ' -f 1,2 "$CALLS" | xargs)" "cuda aquery cuda build cuda info" "what Bazel is asked for"
expect_equal "$(grep -c '//room:difference.cc' "$CALLS")" "1" "a source that is generated"
expect_equal "$(tar tf "$work/one/sources.tar.xz" | sort | xargs)" \
  "bazel-out/k8/bin/room/difference.cc reprise/room reprise/tests room/sum.cu room/sum.h tests/sum_test.cc" "sources"
expect_equal "$(grep -o '"options": [^]]*' "$work/one/plan.json" | sort | xargs -d '\n')" \
  '"options": [ "options": ["-DOFFSET=4", "-gencode=arch=compute_90a", "-fmad=false" "options": ["-ffp-contract=off", "-mavx2", "-fopenmp"' \
  "options that change what a source means"
run pack "$work/none" //tests:gpu_none
expect_equal "$status $output" "1 pack_sources: nothing in Bazel's plan makes //tests:gpu_none" "no such program"

run pack --tests sum_test "$work/alike" //tests:tests //room:tests //tests:gpu_all
expect_equal "$status $output" "0 pack_sources: 3 compilations for gpu_all, tests_tests, room_tests" "names that several targets have"

# ---- What is built.

run build "$work/alike"
expect_output "3 compiled, 3 linked, 0 failed" "two programs of one name"
expect_equal "$("$work/out/alike/tests_tests") $("$work/out/alike/room_tests")" "7 2 7 2" "both"
rm -rf "$work/out"

run build "$work/one"
expect_status 0 "a build"
expect_output "3 compiled, 1 linked, 0 failed" "a build"
expect_equal "$("$work/out/one/gpu_all")" "7 2" "the program"
run build "$work/one"
expect_output "0 compiled, 1 linked, 0 failed" "the same once more"

run build --racecheck 'room/' "$work/one"
expect_output "1 compiled, 2 linked, 0 failed" "one kernel for racecheck"
expect_equal "$("$work/out/one/gpu_racecheck") $("$work/out/one/gpu_all")" "103 2 7 2" "both programs"

sed -i 's/);/); \/\/ changed/' "$project/room/sum.h"
pack --tests sum_test "$work/two" //tests:gpu_all >/dev/null
run build "$work/one" "$work/two"
expect_output "2 compiled, 2 linked, 0 failed" "what includes a changed header"

sed -i 's/a + b + OFFSET/a + c/' "$project/room/sum.cu"
pack --tests sum_test "$work/three" //tests:gpu_all >/dev/null
run build "$work/three"
expect_status 1 "a source that does not compile"
expect_output "room/sum.cu: " "its name"
expect_output "1 compiled, 1 linked, 2 failed" "a source that does not compile"

finish
