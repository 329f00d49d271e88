#!/usr/bin/env bash
# Collects the GPU binaries and the few shared libraries they need into .gpu/, to be carried to a
# machine with a GPU that has the same LibTorch build and nothing else of ours. See docs/gpu-testing.md.
#
#   tools/gpu_bundle.sh [TARGET...]     default: those named below
#   REPRISE_BAZEL_FLAGS="..."           for example --config=racecheck
#   REPRISE_GPU_DIR=DIR                 in place of .gpu; a folder at the top of the repository
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/gpu_pack.sh

# The kernels are what is wanted, whether this machine has a driver or not.
export REPRISE_DEVICE=cuda

out=${REPRISE_GPU_DIR:-.gpu}
limit_kb=25600
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  targets=(//tests:gpu_all //examples/decode:decode //attention/torch_ops:libreprise_ops.so
    //tests/benchmarks/device:decode_step //tests/benchmarks/device:attention_bench)
fi

./bazelw ${REPRISE_BAZEL_STARTUP:-} build ${REPRISE_BAZEL_FLAGS:-} "${targets[@]}"
bin=$(./bazelw ${REPRISE_BAZEL_STARTUP:-} info bazel-bin 2>/dev/null)

rm -rf "$out"
mkdir -p "$out"
content=$(mktemp -d)
trap 'rm -rf "$content"' EXIT
for target in "${targets[@]}"; do
  label=${target#//}
  binary=$bin/${label/://}
  [ -x "$binary" ] || { echo "gpu_bundle: $target gave no binary $binary" >&2; exit 1; }
  add_program "$binary" "$content"
done
pack_programs "$content" "$out"
cp tools/gpu_run.sh "$out/run.sh"

size_kb=$(du -sk "$out" | cut -f1)
echo "gpu_bundle: $out takes ${size_kb} KB, and holds"
(cd "$content" && find . -type f -printf '  %9s %P\n')
if [ "$size_kb" -gt "$limit_kb" ]; then
  echo "gpu_bundle: $out is larger than ${limit_kb} KB" >&2
  exit 1
fi
