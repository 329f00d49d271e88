// The shapes of the attention benchmark, with the time of the best peer for each.
//
// Peers, measured on one NVIDIA H200 (132 SMs) in November 2026, bfloat16, block size 16, cold L2,
// by graph replay: the best of FlashInfer 0.7.2 (FA2 on tensor and CUDA cores, XQA, persistent
// BatchAttention, FA3), FlashAttention-3 as vLLM builds it, and cuDNN 9.19. On another card only
// ratios between lines mean something.

#ifndef TESTS_BENCHMARKS_DEVICE_ATTENTION_GRID_H_
#define TESTS_BENCHMARKS_DEVICE_ATTENTION_GRID_H_

#include <vector>

#include "tests/benchmarks/device/attention_case.h"

namespace reprise {

// One query a row, a few (verify), or with an fp8 cache.
std::vector<AttentionCase> DecodeGrid();

// Many queries a row.
std::vector<AttentionCase> PrefillGrid();

// One query a row, and a prompt.
std::vector<AttentionCase> MixedGrid();

}  // namespace reprise

#endif  // TESTS_BENCHMARKS_DEVICE_ATTENTION_GRID_H_
