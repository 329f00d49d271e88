#!/bin/bash
# Compares the benchmarks of two commits on a GPU. See docs/gpu-testing.md.
#
#   tools/gpu_compare.sh OLD NEW                  both halves, on a machine with git, Bazel, nvcc and a GPU
#   tools/gpu_compare.sh pack OLD NEW [FOLDER]    packs the sources of both commits into FOLDER (.gpu/compare)
#   tools/gpu_compare.sh run [FOLDER]             builds and runs them; needs neither git nor Bazel
#
# A relative FOLDER is below the checkout. FOLDER can be carried to another machine: `python3 FOLDER/gpu_compare.py`
# there does the same as `run`, and gpu_compare.py lists its settings. A benchmark that a commit does not have is left
# out of the sources of that commit. The commits are checked out in a temporary worktree in REPRISE_CACHE
# (~/.cache/reprise).
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
root=$PWD

die() {
  echo "gpu_compare: $*" >&2
  exit 2
}

# pack_commit SIDE COMMIT TREE FOLDER [FLAGS OF pack_sources.py...]
pack_commit() {
  local side=$1 commit=$2 tree=$3 folder=$4 targets
  shift 4
  git -C "$tree" checkout -q --detach "$commit"
  # If a target is missing, the query fails after it has named the others.
  targets=$(cd "$tree" || exit
    REPRISE_DEVICE=cuda ./bazelw query --keep_going "set($(xargs <<<"$all_targets"))" 2>"$folder/query.log" || true)
  targets=$(grep -xF "$all_targets" <<<"$targets") || {
    cat "$folder/query.log" >&2
    die "$commit has none of the benchmarks"
  }
  echo "$side: $(git -C "$tree" log -1 --format='%h %s')"
  grep -vxF "$targets" <<<"$all_targets" | sed "s/^/not in $side: /" || true
  mapfile -t targets <<<"$targets"
  mkdir -p "$folder/$side"
  git -C "$tree" log -1 --format='%h %s' >"$folder/$side/commit"
  (cd "$tree" && "$root/tools/gpu_build/pack_sources.py" "$@" "$folder/$side" "${targets[@]}")
}

# pack OLD NEW FOLDER: one worktree for both commits, so that Bazel analyses only the difference for the second.
pack() {
  local old new folder=$3 cache
  old=$(git rev-parse --verify --quiet "$1^{commit}") || die "OLD must be a commit: got $1"
  new=$(git rev-parse --verify --quiet "$2^{commit}") || die "NEW must be a commit: got $2"
  cache=${REPRISE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/reprise}
  tree=$cache/compare/$(git rev-parse --path-format=absolute --git-common-dir | sha1sum | cut -c 1-12)
  all_targets=$(tools/gpu_compare.py --targets)
  mkdir -p "$(dirname "$tree")"
  exec 9>"$tree.lock"
  flock -n 9 || die "another run uses $tree"
  trap 'git worktree remove --force "$tree"' EXIT
  git worktree prune
  [[ -e $tree/.git ]] || git worktree add -q --detach --force "$tree" "$old"
  mkdir -p "$folder"
  folder=$(realpath "$folder")
  rm -rf "$folder/old" "$folder/new"
  # Bazel's server would inherit the lock.
  pack_commit old "$old" "$tree" "$folder" 9>&-
  pack_commit new "$new" "$tree" "$folder" --libraries "$folder/libraries.tar.xz" 9>&-
  cp tools/gpu_compare.py tools/gpu_build/build.py "$folder/"
  (cd "$tree" && ./bazelw shutdown) >"$folder/query.log" 2>&1 9>&- || true
  rm "$folder/query.log"
  echo "gpu_compare: packed $(du -sk "$folder" | cut -f 1) KB; run python3 $3/gpu_compare.py on a machine with a GPU"
}

case ${1:-}:$# in
  pack:3 | pack:4) pack "$2" "$3" "${4:-.gpu/compare}" ;;
  run:1 | run:2) exec tools/gpu_compare.py "${2:-.gpu/compare}" ;;
  *:2)
    pack "$1" "$2" .gpu/compare
    tools/gpu_compare.py .gpu/compare
    ;;
  *) die "expected OLD NEW, pack OLD NEW [FOLDER] or run [FOLDER]" ;;
esac
