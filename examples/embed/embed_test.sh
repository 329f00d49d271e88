#!/bin/bash
# embed_test.sh GOLDEN... MODEL...: each example runs, checks itself, and prints what it should. GOLDEN are
# the files of the model that mixture reads, MODEL those of the model that stream_text loads. FOLDER is the
# folder of the programs, by default this folder.
set -uo pipefail
golden=$(dirname "$1")
model=$(dirname "${!#}")
folder=${FOLDER:-.}
failures=0

# expect TEXT PROGRAM ARGUMENTS...
expect() {
  local expected=$1 program=$2 output
  shift 2
  output=$("$folder/$program" "$@" 2>&1) && [[ $output == "$expected" ]] && return
  echo "FAILED: $program printed '$output', expected '$expected'" >&2
  failures=$((failures + 1))
}

expect "paged_module: 3 sequences, 8 steps, equal to scaled_dot_product_attention" paged_module
expect "own_attention: 2 prompts, 8 tokens shared, 6 decode steps" own_attention
expect "own_scheduler: 11..17 20..28 5..15 1..16" own_scheduler
expect "own_server: 5 texts, equal to the net without a cache" own_server
expect "own_runner: 3 sequences, 1 eager step, 7 replays" own_runner
expect "own_model: 6 7 8 9 10 11 12 13, 10 11 12 13 14 15 16 17, 15 16 17 18 19 20 21 22" own_model
expect "mixture: 5 texts, equal to the Qwen3-MoE model's" mixture "$golden"
expect "  A period of three hundred and sixty-five disappointments." stream_text "$model" "YEAR, n."
exit $((failures > 0))
