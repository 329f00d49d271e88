#!/bin/bash
# Prints the commits whose subject has more than 72 characters, and ends with 1 if there is one.
#
#   tools/ci/commit_subjects.sh [RANGE]
#
# RANGE: as `git log` takes it. Default: all commits after the commit that added this script. A checkout without that
# commit (a shallow clone, an archive) has nothing to check.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." || exit 1

range=${1:-}
if [[ -z $range ]]; then
  added=$(git log --diff-filter=A --format=%H -- tools/ci/commit_subjects.sh 2>/dev/null | tail -n 1)
  [[ -n $added ]] || exit 0
  range=$added..HEAD
fi
subjects=$(git log --format='%h %s' "$range") || exit 1
export LC_ALL=C.UTF-8  # ${#subject} counts characters
status=0
while read -r commit subject; do
  ((${#subject} > 72)) || continue
  echo "$commit $subject (${#subject} characters)"
  status=1
done <<<"$subjects"
exit "$status"
