#!/bin/bash
# Tests gpu_compare.sh on a project with a fake bazelw, whose new commit adds a benchmark. Tests gpu_compare.py on fake
# programs that print known numbers in the format of the real programs.
set -uo pipefail
source tools/setup/testing.sh
needs git

export GIT_CONFIG_NOSYSTEM=1 HOME=$work REPRISE_CACHE=$work/cache work
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b

# ---- What is packed.

project=$work/project
device=tests/benchmarks/device
mkdir -p "$project/tools/gpu_build" "$project/$device"
cp -L tools/gpu_compare.sh tools/gpu_compare.py "$project/tools/"
cp -L tools/gpu_build/build.py "$project/tools/gpu_build/"
# The archive of this system's libraries would take most of the test's time.
sed 's|/usr/include/|/none/|g; s|^LIBRARY_FOLDERS = .*|LIBRARY_FOLDERS = []|' tools/gpu_build/pack_sources.py \
  >"$project/tools/gpu_build/pack_sources.py"
chmod +x "$project/tools/gpu_build/pack_sources.py"
# Plans a program for each source file that exists. As in Bazel, a query ends with 3 if a target is missing.
cat >"$project/bazelw" <<'END_BAZELW'
#!/usr/bin/env python3
import json, os, re, sys
device = "tests/benchmarks/device"
if sys.argv[1] == "info":
    print(os.environ["work"])
wanted = re.findall(r"//%s:(\w+)" % device, " ".join(sys.argv))
there = [name for name in wanted if os.path.exists("%s/%s.cc" % (device, name))]
if sys.argv[1] == "query":
    print("\n".join("//%s:%s" % (device, name) for name in there))
    sys.exit(0 if there == wanted else 3)
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
for name in there:
    output = "bazel-out/bin/%s/%s" % (device, name)
    add("CppCompile", output + ".pic.o", "-c", "%s/%s.cc" % (device, name))
    add("CppLink", output, output + ".pic.o")
print(json.dumps({"pathFragments": fragments, "artifacts": artifacts, "actions": actions}))
END_BAZELW
chmod +x "$project/bazelw"
commit() { git -C "$project" add -A && git -C "$project" commit -q -m "$1"; }
git -C "$project" init -q
commit "no benchmark"
for program in decode_step attention_bench; do echo "int main() {}" >"$project/$device/$program.cc"; done
commit "the old one"
echo "int main() { return 1; }" >"$project/$device/decode_step.cc"
echo "int main() {}" >"$project/$device/launch_bench.cc"
commit "the new one"
echo "no C++" >"$project/$device/decode_step.cc" # not committed

folder=$project/.gpu/compare
run "$project/tools/gpu_compare.sh" pack HEAD~1 HEAD
expect_status 0 "a pack"
for side in old new; do
  expect_output "$side: $(git -C "$project" log -1 --format='%h %s' --grep="the $side one")" "the commit of $side"
done
expect_output "not in old: //$device:launch_bench
pack_sources: 2 compilations for decode_step, attention_bench" "a program that the old commit does not have"
expect_output "pack_sources: 3 compilations for decode_step, attention_bench, launch_bench" "the programs of the new commit"
expect_equal "$(tar xOf "$folder/old/sources.tar.xz" $device/decode_step.cc)" "int main() {}" "the old sources"
expect_equal "$(tar xOf "$folder/new/sources.tar.xz" $device/decode_step.cc)" "int main() { return 1; }" "the new sources"
expect_equal "$(cd "$folder" && find . -type f | sort | xargs)" "./build.py ./gpu_compare.py ./libraries.tar.xz \
./new/commit ./new/plan.json ./new/sources.tar.xz ./old/commit ./old/plan.json ./old/sources.tar.xz" "the folder"
expect_equal "$(git -C "$project" worktree list | wc -l)" 1 "the worktree is removed"
run "$project/tools/gpu_compare.sh" pack HEAD~2 HEAD
expect_status 2 "a commit without benchmarks"
expect_output "has none of the benchmarks" "a commit without benchmarks"
run "$project/tools/gpu_compare.sh" pack no_such_commit HEAD
expect_equal "$status $output" "2 gpu_compare: OLD must be a commit: got no_such_commit" "no such commit"

# ---- What is compared.

compare=$work/compare
export OUT=$work/out BUILT=$work/built
mkdir -p "$compare/old" "$compare/new" "$OUT"
cp -L tools/gpu_compare.py "$compare/"
echo "1234567 The old one" >"$compare/old/commit"
echo "89abcde The new one" >"$compare/new/commit"
links='"decode_step": {}, "attention_bench": {}, "linear_bench": {}, "cache_ops": {}, "metadata_step": {}'
echo "{\"links\": {$links}}" >"$compare/old/plan.json"
echo "{\"links\": {$links, \"launch_bench\": {}}}" >"$compare/new/plan.json"

# The programs are copies of one script. Each run prints the next line of $work/numbers/PROGRAM.SIDE.
cat >"$work/program" <<'END_PROGRAM'
#!/bin/bash
program=${0##*/} side=${0%/*} side=${side##*/}
[[ $LD_LIBRARY_PATH == /some/lib ]] || { echo "no env.sh" >&2; exit 9; }
echo "$side" >>"$work/order"
echo "$*" >>"$work/runs.$program.$side"
mapfile -t runs <"$work/runs.$program.$side"
mapfile -t numbers <"$work/numbers/$program.$side"
x=${numbers[(${#runs[@]} - 1) % ${#numbers[@]}]}
[[ $x != fails ]] || { echo "out of memory" >&2; exit 3; }
[[ $x != silent ]] || exit 0
case $program in
  decode_step)
    echo "{\"batch\":8,\"dtype\":\"bfloat16\",\"kernels\":151.0,\"launch_us\":12.5,\"products_us\":80.25,\"step_us\":$x}"
    printf '%5s %7s %6s\n%5d %7d %6d %6.2f\n' batch context drafts 8 1024 0 1
    ;;
  attention_bench)
    echo "{\"kernel\":\"decode\",\"name\":\"b1 kv4096\",\"us\":$x}"
    [[ $side == new ]] || echo '{"kernel":"decode","name":"b8 kv4096","us":40.0}'
    printf '\nread-only kernel: %.2f TB/s\n%-26s %9s\n%-26s %9.1f\n' 4.5 shape us "b1 kv4096" "$x"
    ;;
  linear_bench)
    printf 'read %.2f TB/s\n%-14s %4s | %-20s\n' 4.5 shape rows "cuBLASLt, us"
    none=$(printf '%20s' -)
    printf '%-14s %4d | %7.1f %3.0f %% %-8s | %s | %7.1f %3.0f %% %-8s | %s | %s | %s | %s | %s | %s\n' \
      8b.qkv 8 20 50 "" "$none" "$x" 98 4:2:1:1 "$none" "$none" "$none" "$none" "$none" "$none"
    ;;
  cache_ops)
    echo "{\"bytes\":1.0,\"operation\":\"write\",\"shape\":\"32 tokens into bfloat16\",\"us\":$x}"
    ;;
  metadata_step)
    printf '%-24s %5s %8s %10s %10s %9s %8s\n' layers rows refill "local rows" "tile schedules" together "host us"
    printf '%-24s %5d %8.2f %10.2f %10.2f %9.2f %8.1f\n' "window + full" 8 2.5 0 4 "$x" 13
    ;;
  launch_bench)
    echo "{\"context\":256,\"median_us\":$x,\"p90_us\":9.5,\"rows\":8,\"steps\":3000}"
    ;;
esac
END_PROGRAM
chmod +x "$work/program"
# Installs the fake programs.
cat >"$compare/build.py" <<'END_BUILD'
import os, shutil, sys
assert sys.argv[1] == "--libraries" and len(sys.argv) == 6, sys.argv
for folder in sys.argv[4:]:
    name = os.path.basename(folder)
    os.makedirs(sys.argv[3] + "/" + name, exist_ok=True)
    for program in ("decode_step", "attention_bench", "linear_bench", "cache_ops", "metadata_step", "launch_bench"):
        shutil.copy(os.environ["work"] + "/program", "%s/%s/%s" % (sys.argv[3], name, program))
open(sys.argv[3] + "/env.sh", "w").write("export LD_LIBRARY_PATH=/some/lib\n")
sys.exit(int(os.environ.get("FAKE_BUILD", 0)))
END_BUILD

# numbers PROGRAM OLD... -- NEW...: the numbers that both sides print, round by round.
numbers() {
  local file=$work/numbers/$1.old
  mkdir -p "$work/numbers"
  : >"$work/numbers/$1.new"
  : >"$file"
  shift
  for number; do
    if [[ $number == -- ]]; then file=${file%old}new; else echo "$number" >>"$file"; fi
  done
}
compare() {
  rm -f "$work"/runs.* "$work/order"
  "$compare/gpu_compare.py"
}
# row TEXT: the row that begins so, with single spaces.
row() { grep -F "  $1" <<<"$output" | sed -E 's/ +/ /g; s/^ //'; }

# The ratios are 1.1, 1.078, 1.1, 1.089 and 1.1; their median is 1.1. Old runs differ by up to 2 %.
numbers decode_step 100 102 100 101 100 -- 110 110 110 110 110
# New runs are 1 % slower; old runs differ by up to 2 %.
numbers attention_bench 50 51 50 50 50 -- 50.5 50.5 50.5 50.5 50.5
# The sides differ by one unit of the last printed digit.
numbers linear_bench 5.6 5.6 5.6 5.6 5.6 -- 5.7 5.7 5.7 5.7 5.7
# Each side has one slow run, which raises A to A and leaves the median of the ratios at 1.
numbers cache_ops 8 8 10 8 8 -- 8 12 8 8 8
numbers metadata_step 6.4 6.5 6.4 6.4 6.4 -- 4.8 4.8 4.8 4.8 4.8
numbers launch_bench -- 9 9 9 9 9
PROGRAMS="decode_8b attention linear cache metadata launch" run compare
expect_status 0 "a difference is no failure"
expect_output "old: 1234567 The old one
new: 89abcde The new one" "the commits"
expect_equal "$(row 'batch 8: step_us')" "batch 8: step_us 100.00 110.00 1.1000 0.0200 HIGHER" "a slower step"
expect_equal "$(row 'batch 8: kernels')" "batch 8: kernels 151.00 151.00 1.0000 0.0000" "equal counts"
expect_equal "$(row 'b1 kv4096: us')" "b1 kv4096: us 50.00 50.50 1.0100 0.0200" "a difference within A to A"
expect_equal "$(row 'b8 kv4096: us')" "b8 kv4096: us not in new" "a point that only the old program has"
expect_equal "$(row '8b.qkv rows 8')" "8b.qkv rows 8: cublaslt 20.00 20.00 1.0000 0.0050
8b.qkv rows 8: tiles alone 5.60 5.70 1.0179 0.0179" "the cells of a table"
expect_equal "$(row 'write 32 tokens')" "write 32 tokens into bfloat16: us 8.00 8.00 1.0000 0.2500" "slow runs"
expect_equal "$(row 'window + full')" "window + full, rows 8: refill 2.50 2.50 1.0000 0.0040
window + full, rows 8: tile schedules 4.00 4.00 1.0000 0.0025
window + full, rows 8: together 6.40 4.80 0.7500 0.0156 LOWER
window + full, rows 8: host 13.00 13.00 1.0000 0.0077" "a table of numbers"
expect_output "launch: launch_bench is not in old" "a program that only the new commit has"
expect_output "12 quantities compared: 1 higher and 1 lower than A to A explains; 1 on one side only; failed: none" "the sum"
expect_equal "$(sort -u "$work"/runs.cache_ops.*)" "--only=write,read,copy,prologue" "flags"
[[ -s $OUT/decode_8b.5.new.txt ]] || fail "the output is kept"

cp "$compare/new/plan.json" "$compare/old/plan.json"
numbers launch_bench 9 9 -- 8 8
PROGRAMS=launch ROUNDS=2 run compare
expect_equal "$(row 'rows 8')" "rows 8: median_us 9.00 8.00 0.8889 0.0000 LOWER
rows 8: p90_us 9.50 9.50 1.0000 0.0000" "the host's time"

PROGRAMS=decode_1b ROUNDS=3 run compare
expect_equal "$(xargs <"$work/order")" "old new old new old new" "the programs run in turn"
expect_output "decode_1b: decode_step --preset=llama-3.2-1b --batch=1 --steps=60: rounds 3, " "the number of rounds"

PROGRAMS=decode_1b LIMIT=0 run compare
expect_equal "$status $(xargs <"$work/order")" "0 old new old new" "no time is left for more than two rounds"
expect_output "rounds 2 of 5, to keep LIMIT=0" "the reason"

PROGRAMS="cache decode_lb" run compare
expect_equal "$status" 1 "a name that is none"
expect_output "PROGRAMS must be names of decode_8b decode_1b attention linear cache metadata launch: got decode_lb" "its name"

numbers cache_ops 8 8 8 8 8 -- 8 8 fails
PROGRAMS="cache metadata" run compare
expect_status 1 "a program that fails"
expect_output "FAILED cache: round 3 of new: status 3
out of memory" "its name and message"
expect_output "together" "the other programs are compared"
expect_output "failed: cache" "the sum names it"

numbers cache_ops 8 8 -- 8 unknown
PROGRAMS=cache run compare
expect_status 1 "a line that cannot be parsed"
expect_output "FAILED cache: round 2 of new: $OUT/cache.2.new.txt cannot be parsed: " "the file"

numbers cache_ops silent
PROGRAMS=cache run compare
expect_status 1 "a program that prints no number"
expect_output "FAILED cache: round 1 of old: no quantity in $OUT/cache.1.old.txt" "its name"

FAKE_BUILD=1 run compare
expect_status 1 "a build that fails"
expect_output "gpu_compare: the build failed" "a build that fails"

finish
