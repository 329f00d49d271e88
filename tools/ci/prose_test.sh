#!/bin/bash
# Runs prose_lint.py and commit_subjects.sh over a small repository.
set -uo pipefail
source tools/setup/testing.sh

lint=$PWD/tools/ci/prose_lint.py
subjects=$PWD/tools/ci/commit_subjects.sh
project=$work/project

commit() {
  git -C "$project" add -A
  git -C "$project" -c user.name=test -c user.email=test@example.com commit -q --allow-empty -m "$1"
}

# in_project COMMAND...: runs it in the repository.
in_project() {
  cd "$project" && "$@"
}

git init -q "$project"
cat >"$project/pool.h" <<'END_CODE'
// Returns the number of free blocks of the pool.
int NumFree();

// Of the blocks that have come, those that are not yet anyone's.
int NumUnowned();
END_CODE
commit "Add a pool"

run in_project "$lint"
expect_status 0 "a match is a hint"
expect_output "pool.h:4: [" "the line of a flagged sentence"
expect_output "Of the blocks that have come" "a flagged sentence"
expect_output "all: 1 / 2 = 50.0%" "the share of all sentences"

echo 50.0 >"$work/limit"
run in_project "$lint" --limit "$work/limit"
expect_status 0 "a share at the limit"
expect_equal "$output" "" "a share at the limit"
echo 49.9 >"$work/limit"
run in_project "$lint" --limit "$work/limit"
expect_status 1 "a share above the limit"
expect_equal "$output" "1 of 2 sentences are flagged, 50.0 %: $work/limit allows 49.9 %" "a share above the limit"
echo none >"$work/limit"
run in_project "$lint" --limit "$work/limit"
expect_status 1 "a limit that is no number"

cat >>"$project/pool.h" <<'END_CODE'

// Returns a block to the pool, and keeps its contents.
void Release(int block);
END_CODE
run in_project "$lint" --base HEAD
expect_output "all: 0 / 1 = 0.0%" "the sentences of added lines"

commit "This subject is much longer than seventy-two characters, but older than the script that checks"
mkdir -p "$project/tools/ci"
cp "$subjects" "$project/tools/ci/"
commit "Check the subjects of commits"
# Two of the 72 characters are not ASCII.
commit "Release blocks: äö $(printf '%053d' 0)"
run in_project tools/ci/commit_subjects.sh
expect_status 0 "a subject of 72 characters"
commit "Release blocks: $(printf '%057d' 0)"
run in_project tools/ci/commit_subjects.sh
expect_status 1 "a subject of 73 characters"
expect_output "(73 characters)" "a subject of 73 characters"
commit "Add a test"
run in_project tools/ci/commit_subjects.sh
expect_status 1 "a long subject before the last one"
run in_project tools/ci/commit_subjects.sh HEAD~1..HEAD
expect_status 0 "a range without a long subject"
run in_project tools/ci/commit_subjects.sh no_such_commit..HEAD
expect_status 1 "an unknown range"

rm -rf "$project/.git"
run in_project tools/ci/commit_subjects.sh
expect_status 0 "no repository"

finish
