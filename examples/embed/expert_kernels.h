// Kernels of a mixture of experts, for the CPU and for the GPU, in three passes:
//
//   assign    each pair of a token and a chosen expert gets a place in that expert's queue, in the
//             order of the tokens. Tokens from *num_live_tokens on are padding and get none: they
//             take no room from others. Pairs beyond an expert's `capacity` get none either.
//   compute   the gated feed-forward of each place that is taken
//   combine   out[t] = sum over its pairs of weight * output of the place
//
// All sizes are constants of a captured graph; how many places are taken is read on the device.

#ifndef EXPERT_KERNELS_H_
#define EXPERT_KERNELS_H_

#include <cstdint>

struct CUstream_st;  // cudaStream_t is a pointer to it

struct ExpertArgs {
  const float* x = nullptr;                  // [num_tokens, hidden]
  const int64_t* experts = nullptr;          // [num_tokens, num_chosen]
  const float* weights = nullptr;            // [num_tokens, num_chosen]
  const int32_t* num_live_tokens = nullptr;  // [1]
  const float* gate_up = nullptr;            // [num_experts, 2 * inner, hidden], gate first
  const float* down = nullptr;               // [num_experts, hidden, inner]
  int32_t* places = nullptr;                 // [num_tokens, num_chosen] written; -1: none
  int32_t* counts = nullptr;                 // [num_experts] written: places taken
  int32_t* tokens = nullptr;                 // [num_experts, capacity] written
  float* outputs = nullptr;                  // [num_experts, capacity, hidden] written
  float* out = nullptr;                      // [num_tokens, hidden] written; 0 for padding
  int num_tokens = 0;
  int num_chosen = 0;
  int num_experts = 0;
  int capacity = 0;
  int hidden = 0;
  int inner = 0;  // at most 1024
};

void ExpertsOnHost(const ExpertArgs& args);

// Enqueues the passes; may be captured. Returns the cudaError_t of the launches.
int LaunchExperts(const ExpertArgs& args, CUstream_st* stream);

#endif  // EXPERT_KERNELS_H_
