#!/bin/bash
# docs.py over a small project: pages that are right, then each thing that may be wrong with them.
set -uo pipefail
source tools/setup/testing.sh

project=$work/project

# A project without a breach.
make_project() {
  rm -rf "$project"
  mkdir -p "$project/docs/concepts" "$project/room" "$project/tests/docs"
  cat >"$project/README.md" <<'END_PAGE'
# Project

![the whole](docs/whole.svg) and [the pages](docs/README.md).

    An indented block may show [a link](nowhere.md).

- [a heading](docs/one.md#it-is-a-heading), [twice](docs/one.md#twice-1), [code](docs/one.md#room-roomh--code)
- [elsewhere](https://example.com/none.md#none), `[not](a-link.md)`, [here](#project)
END_PAGE
  touch "$project/docs/whole.svg"
  cat >"$project/docs/README.md" <<'END_PAGE'
# Pages

[one](one.md), [tuning](tuning.md), [questions](questions.md), [concept](concepts/concept.md)
END_PAGE
  cat >"$project/docs/one.md" <<'END_PAGE'
# It is a heading

## Twice
## Twice
## `Room`, `room.h` & code

```cpp
int Twice(int x) {
  return 2 * x;
}
```

```cpp sketch
Anything(...);
```

```
[not](a-link.md)
# no heading
```
END_PAGE
  echo '[up](../one.md#twice)' >"$project/docs/concepts/concept.md"
  cat >"$project/tests/docs/one_test.cc" <<'END_CODE'
namespace {
  // [twice begin]
  int Twice(int x) {
    return 2 * x;
  }
  // [twice end]
}
END_CODE
  cat >"$project/room/options.h" <<'END_CODE'
struct Options {
  enum class Mode { kOne, kTwo };
  // How many; at least 1.
  int count = 8;
  std::optional<int> limit = {};
  std::function<int(int)> twice = Twice;
  std::vector<int> sizes;
  Mode mode = Mode::kOne;  // or the other

  int half() const { return count / 2; }
  friend bool operator==(const Options&, const Options&) = default;
};
END_CODE
  cat >"$project/docs/tuning.md" <<'END_PAGE'
# Tuning

## `Options`, `room/options.h`

| field | default | effect |
|---|---|---|
| `count` | `8` | how many |
| `limit` | `{}` | none |
| `twice` | `Twice` | doubles |
| `sizes` | `{}` | sizes |
| `mode` | `Mode::kOne` | one or two |

## Others

| `nothing` | `0` | is not looked at |
END_PAGE
  mkdir -p "$project/docs/data"
  echo '{"numbers_of": {"ms": "docs/one.md"}, "counts": ["rows"], "steps": [{"rows": 64, "ms": 4.50}]}' >"$project/docs/data/steps.json"
  echo 'It takes 4.50 ms.' >>"$project/docs/one.md"
  {
    echo '# Questions'
    for i in 1 2 3 4 5 6 7 8 9 10; do
      printf '\n## Question %s?\n\nAn answer.\nMore: [one](one.md#twice).\n' "$i"
    done
  } >"$project/docs/questions.md"
}

docs() {
  tools/ci/docs.py --root "$project"
}

# breach FILE SED_SCRIPT EXPECTED WHAT: one change, and what is said of it.
breach() {
  make_project
  sed -i "$2" "$project/$1"
  run docs
  expect_status 1 "$4"
  expect_output "$3" "$4"
}

make_project
run docs
expect_status 0 "a project without a breach"
expect_equal "$output" "" "a project without a breach"

breach README.md 's/whole.svg/gone.svg/' 'README.md:3: docs/gone.svg: there is no docs/gone.svg' "a picture that is gone"
breach README.md 's/#twice-1/#twice-2/' 'docs/one.md has no heading with the anchor #twice-2' "an anchor that is none"
breach README.md 's/(#project)/(#others)/' 'no heading with the anchor #others' "an anchor of the page itself"
breach docs/concepts/concept.md 's,../one.md,one.md,' 'there is no docs/concepts/one.md' "a link from a folder"
breach README.md 's,docs/one.md#it-is-a-heading,../outside.md,' 'there is no ../outside.md' "a link out of the project"
breach docs/one.md 's/return 2/return 3/' 'docs/one.md:7: the block is not between markers' "code that is not compiled"
breach tests/docs/one_test.cc '/twice end/d' 'docs/one.md:7: the block is not between markers' "a marker without its end"
breach docs/one.md 's/cpp sketch/cpp skecth/' "'cpp skecth': expected cpp or cpp sketch" "an unknown kind of block"
breach README.md 's,An indented block.*,int x = 3;  // code,' 'README.md:5: C++ in an indented block, which nothing compiles' "C++ that is indented"
breach docs/tuning.md '/`limit`/d' 'Options::limit is not on the page' "a field that is not on the page"
breach docs/tuning.md 's/`8`/`9`/' 'Options::count: the default is `8`, the page says `9`' "a default that is another"
breach docs/tuning.md 's/| doubles |/| |/' 'Options::twice is not on the page' "a field without an effect"
breach docs/tuning.md 's/`sizes` |/`size` |/' 'Options has no field size' "a field that is none"
breach docs/tuning.md 's,room/options.h,room/gone.h,' 'room/gone.h has no struct Options' "a header that is gone"
breach room/options.h 's/int count = 8;/int count = 8;\n  bool fresh = false;/' 'Options::fresh is not on the page' "a new field"
breach docs/questions.md 's/## Question 3?/## Statement 3/' "'Statement 3' is no question" "a statement"
breach docs/questions.md '/Question 4/,/More/s/More.*/None./' "'Question 4?': no link to a heading" "an answer without a link"
breach docs/questions.md '/## Question 10/,$d' '9 questions, expected at least 10' "too few questions"
breach docs/questions.md '/Question 5/,/More/s/An answer./1\n2\n3\n4/' 'an answer of 5 lines' "a long answer"
breach docs/one.md 's/4.50 ms/4.5 ms/' 'docs/data/steps.json: ms 4.50 is not in docs/one.md' "a number that is written otherwise"
breach docs/one.md 's/4.50 ms/14.50 ms/' 'ms 4.50 is not in docs/one.md' "a number that is a part of another"
breach docs/data/steps.json 's/, "counts": \["rows"\]//' 'rows is neither among numbers_of nor among counts' "a number of unknown origin"
breach docs/README.md 's/, \[tuning\](tuning.md)//' 'docs/README.md does not link to docs/tuning.md' "a page outside of the index"
for page in tuning questions README; do
  make_project
  rm "$project/docs/$page.md"
  run docs
  expect_status 1 "no $page.md"
  expect_output "there is no docs/$page.md" "no $page.md"
done

exit $((failures > 0))
