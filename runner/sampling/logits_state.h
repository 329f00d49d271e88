// Maintains the per-slot state of logits processors and log-probabilities
// (runner/sampling/logits_params.h): sets it when a sequence joins, and counts the sequence's
// tokens.
//
//   // A step in which sequences with penalties, biases or log-probabilities join, before Sample():
//   LaunchJoinLogits({.joins = joins, .biases = biases, .tokens = tokens, .num_joins = 2,
//                     .num_biases = 3, .num_tokens = 700, .slots = slots}, stream);
//   // Each step with rows that have penalties, after Sample():
//   LaunchCountTokens({.sample_slot = arrays.sample_slot, .last_token = slots.last_token,
//                      .num_rows = 16, .slots = slots}, stream);
//
// A step that is launched before the host has received the tokens of the previous step can
// therefore already penalise them. A sequence without penalties, biases or log-probabilities joins
// with the default LogitsParams, or without a join if its slot has the default already.
//
// Joins: a slot outside [0, num_slots) is skipped. A join whose lists exceed the step's arrays, or
// that has more than max_biases biases, sets the default. Tokens outside [0, vocab_size) are not
// counted. CountTokens: rows that do not sample or have no penalties are skipped; their counts are
// not read.
//
// Thread safety: none; one caller at a time for the same slots. The device forms use one launch, do
// not synchronise or allocate, and may be captured. Joins and their lists may be in mapped host
// memory. Cost of a join with penalties: writing the slot's counts (256 KB for a vocabulary of
// 128,000) and reading its tokens.
// Cost of CountTokens: a launch.

#ifndef REPRISE_RUNNER_SAMPLING_LOGITS_STATE_H_
#define REPRISE_RUNNER_SAMPLING_LOGITS_STATE_H_

#include "absl/status/status.h"
#include "reprise/runner/sampling/logits_state_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Check sizes and the presence of arrays, not their content. Errors: InvalidArgument, naming the
// field.
absl::Status CheckJoinLogits(const JoinLogitsArgs& args);
absl::Status CheckCountTokens(const CountTokensArgs& args);

// REQUIRES: the check is OK. Do not allocate.
void JoinLogitsOnHost(const JoinLogitsArgs& args);
void CountTokensOnHost(const CountTokensArgs& args);

// The device forms. Errors: those of the checks, before any CUDA call; Internal if the CUDA launch
// fails. Only in builds with CUDA (target logits_state_cuda).
absl::Status LaunchJoinLogits(const JoinLogitsArgs& args, CUstream_st* stream);
absl::Status LaunchCountTokens(const CountTokensArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_LOGITS_STATE_H_
