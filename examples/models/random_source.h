// Unstable: any version may change this header (docs/embedding.md).
//
// Weights for tests and measurements: random, of a model's shapes, made on the device, without a
// checkpoint.
//
//   REPRISE_ASSIGN_OR_RETURN(DecoderWeights weights,
//                            MakeRandomWeights(config, {.device = c10::kCUDA}));
//
// Thread safety: pure functions.

#ifndef REPRISE_MODELS_RANDOM_SOURCE_H_
#define REPRISE_MODELS_RANDOM_SOURCE_H_

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <type_traits>

#include "absl/status/statusor.h"
#include "reprise/base/dtype.h"
#include "reprise/base/torch_status.h"
#include "reprise/distributed/collectives.h"
#include "reprise/hf/weights.h"

namespace reprise {

enum class RandomSpread : int8_t {
  // As models before training: matrices and biases are normal with deviation 0.02, norms leave
  // lengths as they are.
  kUntrained,
  // So that every weight matters: matrices are normal with a deviation that keeps lengths
  // (1 / sqrt(in_features)), so that attention is far from uniform; norms and biases are spread.
  kLively,
};

// The same options give the same bits on the same kind of device.
struct RandomWeightsOptions {
  c10::Device device = c10::kCPU;
  DType dtype = DType::kBFloat16;
  uint64_t seed = 1;
  // Weights of a rank's sizes. They are no parts of one model: for measurements, not for texts.
  Ranks ranks = {};
};

// LibTorch's own generator is not changed.
class RandomSource : public WeightSource {
 public:
  RandomSource(const RandomWeightsOptions& options, RandomSpread spread);

  absl::StatusOr<at::Tensor> Add(const WeightRequest& request) override;

 private:
  RandomSpread spread_;
  at::TensorOptions options_;
  at::Generator generator_;
};

// The result of `read`, an absl::StatusOr<Weights>(WeightSource&), on random tensors. Errors:
// ResourceExhausted if the device's memory does not suffice.
template <typename Read>
std::invoke_result_t<Read, WeightSource&> MakeRandom(
    const RandomWeightsOptions& options, const Read& read,
    RandomSpread spread = RandomSpread::kUntrained) {
  return CatchTorchOr([&] {
    RandomSource source(options, spread);
    return read(source);
  });
}

}  // namespace reprise

#endif  // REPRISE_MODELS_RANDOM_SOURCE_H_
