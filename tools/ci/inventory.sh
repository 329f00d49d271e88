#!/bin/bash
# Prints an inventory of the project, sorted, one line per item: public types, functions and members, options with
# their defaults, flags of decode, error messages, rows of docs/features.txt, test cases. inventory.py lists the kinds
# of lines.
#
#   tools/ci/inventory.sh                     the working tree
#   tools/ci/inventory.sh REV                 a commit
#   tools/ci/inventory.sh --lost OLD [NEW]    the lines of OLD that NEW (default: the working tree) does not have
#
# --lost ends with 1 if it prints a line. A renamed item and a changed default or message count as lost. Needs git and
# Python 3.8.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."

die() {
  echo "inventory: $*" >&2
  exit 2
}

# inventory [REV]
inventory() (
  (($# > 0)) || exec tools/ci/inventory.py --root .
  git rev-parse --verify --quiet "$1^{commit}" >/dev/null || die "REV must be a commit: got $1"
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  git archive "$1" | tar -x -C "$tree"
  tools/ci/inventory.py --root "$tree"
)

case ${1:-}:$# in
  --lost:2 | --lost:3)
    old=$(inventory "$2")
    new=$(inventory "${@:3}")
    lost=$(LC_ALL=C comm -23 <(LC_ALL=C sort <<<"$old") <(LC_ALL=C sort <<<"$new"))
    [[ -n $lost ]] || exit 0
    echo "$lost"
    exit 1
    ;;
  -*) die "expected nothing, REV or --lost OLD [NEW]: got $*" ;;
  :0 | *:1) inventory "$@" ;;
  *) die "expected nothing, REV or --lost OLD [NEW]: got $*" ;;
esac
