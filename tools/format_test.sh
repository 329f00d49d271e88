#!/bin/bash
# tools/format.sh over a checkout of its own, with a clang-format that removes doubled blanks.
set -uo pipefail
source tools/setup/testing.sh
needs git

format=$PWD/tools/format.sh
stand_in clang-format <<'END'
#!/bin/bash
if [[ $1 == -i ]]; then sed -i 's/  */ /g' "$2"; else sed 's/  */ /g' "$1"; fi
END
checkout=$work/checkout
mkdir "$checkout"
cd "$checkout" || exit 1
git() { command git -c user.name=test -c user.email=test@example.com -c init.defaultBranch=main "$@"; }
git init --quiet
echo 'int  old;' >old.cc
echo 'int same;' >same.cc
git add . && git commit --quiet -m first
git checkout --quiet -b change
echo 'int  new_file;' >new_file.cu
echo 'int  changed;' >same.cc
echo 'two  blanks' >text.md
export BUILD_WORKSPACE_DIRECTORY=$checkout

run "$format" --check
expect_status 1 "a check of files that would change"
expect_output "2 files, 2 to change" "a check looks at what differs from main"
expect_equal "$(<same.cc)" 'int  changed;' "a check changes nothing"
run "$format"
expect_status 0 "files that change"
expect_output "2 files, 2 changed" "files that change"
expect_equal "$(<same.cc)$(<new_file.cu)" 'int changed;int new_file;' "both are changed"
expect_equal "$(<old.cc)$(<text.md)" 'int  old;two  blanks' "others are not"
run "$format" --check
expect_equal "$status $output" "0 format: 2 files, 0 to change" "nothing is left"
run "$format" --all --check
expect_status 1 "all files"
expect_output "old.cc" "all files"
run "$format" old.cc
expect_equal "$(<old.cc)" 'int old;' "a file that is named"
run "$format" no_such.cc
expect_status 2 "a file that is not there"
run "$format" --al
expect_output "expected --all, --check or files, got '--al'" "an unknown option"
CLANG_FORMAT=no-such-program run "$format"
expect_status 2 "no clang-format"
finish
