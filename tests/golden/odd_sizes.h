// A checkpoint that divides over ranks in no even way: one KV head, an odd vocabulary, an inner
// size that no number of ranks divides, and weights that are tied, in several files.

#ifndef TESTS_GOLDEN_ODD_SIZES_H_
#define TESTS_GOLDEN_ODD_SIZES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/engine/request.h"
#include "reprise/models/model_folder.h"

namespace reprise {

struct OddSizes {
  std::string folder = {};
  ModelConfig config = {};
  std::vector<Request> requests = {};  // one, whose 8 tokens are forced
  int num_logits = 0;                  // of all of them
};

// Writes random float32 weights into a folder of that name in the test's temporary one. Errors:
// those of WriteRandomCheckpoint() and LoadModelConfig().
absl::StatusOr<OddSizes> WriteOddSizes(const std::string& name);

}  // namespace reprise

#endif  // TESTS_GOLDEN_ODD_SIZES_H_
