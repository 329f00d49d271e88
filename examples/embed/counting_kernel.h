// A kernel of one's own, for the CPU and for the GPU: logits that make the successor of what was
// attended to the likeliest token.

#ifndef COUNTING_KERNEL_H_
#define COUNTING_KERNEL_H_

#include <cstdint>

struct CUstream_st;  // cudaStream_t is a pointer to it

struct SuccessorArgs {
  const float* attended = nullptr;  // [num_tokens, vocab_size]
  const int32_t* rows = nullptr;    // [num_logits] tokens whose logits are wanted
  float* logits = nullptr;  // [num_logits, vocab_size]: logits[i, c] = attended[rows[i], c - 1]
  int num_logits = 0;
  int vocab_size = 0;
};

void SuccessorOnHost(const SuccessorArgs& args);

// Enqueues it; may be captured. Returns the cudaError_t of the launch.
int LaunchSuccessor(const SuccessorArgs& args, CUstream_st* stream);

#endif  // COUNTING_KERNEL_H_
