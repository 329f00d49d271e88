// The model of a golden folder, loaded by the example that supports it.
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
//                            LoadGoldenModel(golden, c10::kCPU, DType::kFloat32));

#ifndef TESTS_GOLDEN_GOLDEN_MODEL_H_
#define TESTS_GOLDEN_GOLDEN_MODEL_H_

#include <c10/core/Device.h>

#include <memory>

#include "absl/status/statusor.h"
#include "reprise/base/dtype.h"
#include "reprise/distributed/collectives.h"
#include "reprise/models/decoder/decoder_attention.h"
#include "reprise/runner/model.h"
#include "tests/golden/golden.h"

namespace reprise {

// `collectives`: the ranks that its weights are divided over, `context` those of its keys; null:
// one. Errors: those of LoadModelConfig()
// and LoadModel().
absl::StatusOr<std::unique_ptr<Model>> LoadGoldenModel(const Golden& golden, c10::Device device,
                                                       DType dtype,
                                                       MlaCache mla_cache = MlaCache::kLatent,
                                                       Collectives* collectives = nullptr,
                                                       Collectives* context = nullptr);

// Whether a model of LoadGoldenModel() chooses experts for each token.
bool HasExperts(const Model& model);

// Whether RunSixteenBits() needs the model's routing in float32: the model chooses experts, and the
// golden has no medians of errors.
bool NeedsRouting(const Model& model, const Golden& golden);

}  // namespace reprise

#endif  // TESTS_GOLDEN_GOLDEN_MODEL_H_
