#!/bin/bash
# The loop by hand gives the text that the engine gives (examples/decode/decode_test.cc), alone and in a
# batch.
set -euo pipefail
expected="YEAR, n.  A period of three hundred and sixty-five disappointments."
program=examples/simple/simple
alone=$("$program" "YEAR, n.")
[[ $alone == "$expected" ]] || {
  echo "alone: expected $expected, got $alone" >&2
  exit 1
}
batch=$("$program" "hack" "YEAR, n." "a b c d e f g")
[[ $batch == *$'\n'"$expected"$'\n'* ]] || {
  echo "in a batch: expected a line $expected, got $batch" >&2
  exit 1
}

# prompt_of NUM_TOKENS: "hack" is a token, and a prompt begins with one more.
prompt_of() { printf 'hack%.0s ' $(seq "$(($1 - 1))") | sed 's/ $//'; }

# The longest sequence has keys of 96 tokens. decode serve --max_seq_len 96 prints the same texts.
expected="$(prompt_of 95)    With
$(prompt_of 96)   "
longest=$("$program" "$(prompt_of 95)" "$(prompt_of 96)")
[[ $longest == "$expected" ]] || {
  echo "prompts of 95 and 96 tokens: expected '$expected', got '$longest'" >&2
  exit 1
}
# More prompt tokens than a step computes: the prompts are cut into chunks.
many=()
for _ in {1..13}; do many+=("$(prompt_of 41)"); done
different=$("$program" "${many[@]}" | sort -u)
[[ $different == "$("$program" "$(prompt_of 41)")" ]] || {
  echo "13 prompts of 41 tokens: expected one text, got $different" >&2
  exit 1
}
expected="simple: prompt too long: expected at most 96 tokens, got 97"
if message=$("$program" "$(prompt_of 97)" 2>&1) || [[ $message != "$expected" ]]; then
  echo "a prompt of 97 tokens: expected $expected, got $message" >&2
  exit 1
fi
