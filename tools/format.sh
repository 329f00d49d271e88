#!/bin/bash
# Runs clang-format over the C++ and CUDA sources that differ from the main branch, or over the given ones.
#
#   ./bazelw run //:format                 those that differ from main, and those that git does not know yet
#   ./bazelw run //:format -- --all        all of them
#   ./bazelw run //:format -- --check      changes nothing; ends with 1 and their names if some would change
#   ./bazelw run //:format -- FILE...
set -euo pipefail

cd "${BUILD_WORKSPACE_DIRECTORY:-$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/..}"
clang_format=${CLANG_FORMAT:-clang-format}
command -v "$clang_format" >/dev/null ||
  { echo "format: $clang_format was not found: install the Debian package clang-format, or set CLANG_FORMAT" >&2 && exit 2; }

patterns=('*.h' '*.cc' '*.cu' '*.cuh')
check=no all=no files=()
for argument in "$@"; do
  case $argument in
    --check) check=yes ;;
    --all) all=yes ;;
    -*) echo "format: expected --all, --check or files, got '$argument'" >&2 && exit 2 ;;
    *)
      [[ -f $argument ]] || { echo "format: there is no file $argument" >&2 && exit 2; }
      files+=("$argument")
      ;;
  esac
done
if ((${#files[@]} == 0)); then
  if [[ $all == yes ]]; then
    mapfile -t files < <(git ls-files "${patterns[@]}")
  else
    base=$(git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)
    mapfile -t files < <({
      git diff --name-only --diff-filter=d "$base" -- "${patterns[@]}"
      git ls-files --others --exclude-standard "${patterns[@]}"
    } | sort -u)
  fi
fi

changed=()
for file in "${files[@]}"; do
  "$clang_format" "$file" | cmp --silent - "$file" && continue
  changed+=("$file")
  [[ $check == yes ]] || "$clang_format" -i "$file"
done
((${#changed[@]} == 0)) || printf '%s\n' "${changed[@]}"
echo "format: ${#files[@]} files, ${#changed[@]} $([[ $check == yes ]] && echo "to change" || echo changed)"
[[ $check == no ]] || ((${#changed[@]} == 0))
