// A golden model through `decode`, in float32: for the tests of the CPU and of the GPU.

#ifndef TESTS_GOLDEN_DECODE_GOLDEN_H_
#define TESTS_GOLDEN_DECODE_GOLDEN_H_

#include <algorithm>
#include <string>

#include "examples/decode/options.h"
#include "gtest/gtest.h"

namespace reprise {

// The golden models whose texts decode must write, one of each kind.
inline constexpr const char* kDecodeGoldens[] = {"bloom-alibi", "deepseek-mla",   "deepseek-v3",
                                                 "gemma3",      "gemma3-wrapped", "gpt-oss-sinks",
                                                 "gpt2",        "qwen3-moe"};

// Continues the golden prompts of such a model: expects its greedy tokens, and that after the step
// of the prompts every step was a replay.
void ExpectDecodeIsGolden(const std::string& name, DeviceChoice device);

// "bloom-alibi" in the form of gtest names.
inline std::string DecodeGoldenName(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace reprise

#endif  // TESTS_GOLDEN_DECODE_GOLDEN_H_
