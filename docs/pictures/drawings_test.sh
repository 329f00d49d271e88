#!/bin/bash
# The drawings of docs/pictures are those that draw.py makes, byte by byte, and it says so when they are not.
set -uo pipefail
source tools/setup/testing.sh

run docs/pictures/draw.py --check
expect_status 0 "the drawings of the project"

# Each is well-formed, has both sets of colours, and a sentence for those who cannot see it.
for drawing in docs/pictures/*.svg; do
  run python3 -c 'import sys, xml.dom.minidom as m; print(m.parse(sys.argv[1]).getElementsByTagName("title")[0].firstChild.data)' "$drawing"
  expect_status 0 "$drawing is XML"
  ((${#output} > 40)) || fail "$drawing: its title is too short"
  grep -q 'prefers-color-scheme:dark' "$drawing" || fail "$drawing has no colours for dark pages"
done

# One that has changed, one that is missing, one that nothing draws, numbers that have changed.
mkdir -p "$work/docs/pictures" "$work/docs/data"
cp docs/pictures/*.py docs/pictures/*.svg "$work/docs/pictures/"
cp docs/data/*.json "$work/docs/data/"
chmod -R u+w "$work"
draw() { (cd "$work" && docs/pictures/draw.py "$@"); }
run draw --check
expect_status 0 "a copy"
sed -i 's/Decide()/Guess()/' "$work/docs/pictures/graphs.svg"
rm "$work/docs/pictures/cache.svg"
echo '<svg/>' >"$work/docs/pictures/forgotten.svg"
sed -i '0,/"ms": [0-9.]*,/s//"ms": 2.5,/' "$work/docs/data/steps.json"
run draw --check
expect_status 1 "drawings that differ"
expect_output "graphs.svg is not what is drawn" "a drawing that has changed"
expect_output "there is no" "a drawing that is missing"
expect_output "forgotten.svg is drawn by nothing" "a drawing that nothing draws"
expect_output "steps.svg is not what is drawn" "numbers that have changed"
[[ $(wc -l <<<"$output") == 4 ]] || fail "others differ, too"
rm "$work/docs/pictures/forgotten.svg"
run draw
expect_status 0 "drawn anew"
run draw --check
expect_status 0 "after that"

exit $((failures > 0))
