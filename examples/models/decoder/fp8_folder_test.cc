// A folder with fp8 weights, from its files to logits: the model that comes with the project, its
// projections quantised as checkpoints have it, beside the same model with the dequantised values
// as weights of 16 or 32 bits. Scales are powers of two, so that those are the same numbers.

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/engine/create_engine.h"
#include "reprise/hf/checkpoint.h"
#include "reprise/hf/safetensors_writer.h"
#include "reprise/models/generate.h"
#include "reprise/models/model_folder.h"
#include "reprise/runner/ops/test_device.h"

namespace reprise {
namespace {

constexpr int kNumRequests = 12;  // more rows than the kernel of the fewest serves
constexpr int kNumTokens = 10;

enum class Scales { kTensor, kRow, kBlock };

using Tensors = std::map<std::string, at::Tensor>;

absl::StatusOr<Tensors> ReadTensors(const std::string& folder) {
  REPRISE_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(folder));
  Tensors tensors;
  for (const auto& [name, view] : checkpoint.tensors()) {
    tensors[name] = at::from_blob(const_cast<char*>(view.bytes.data()), view.shape,
                                  at::TensorOptions().dtype(ToScalarType(*ToDType(view.type))))
                        .clone();
  }
  return tensors;
}

// The scale of each value of a weight, expanded to its shape.
at::Tensor ScalesOf(const at::Tensor& weight, Scales scales) {
  const at::Tensor sizes = weight.abs();
  at::Tensor largest = sizes.amax();
  if (scales == Scales::kRow) largest = sizes.amax({1}, /*keepdim=*/true);
  if (scales == Scales::kBlock) {
    largest = sizes.clone();
    for (int64_t row = 0; row < weight.size(0); row += 128) {
      for (int64_t column = 0; column < weight.size(1); column += 128) {
        at::Tensor block = largest.narrow(0, row, std::min<int64_t>(128, weight.size(0) - row))
                               .narrow(1, column, std::min<int64_t>(128, weight.size(1) - column));
        block.fill_(block.amax());
      }
    }
  }
  return (largest / 448).log2().ceil().exp2().expand_as(weight);
}

// As stored beside the weight: [], [rows, 1] or [blocks of rows, blocks of columns].
at::Tensor Stored(const at::Tensor& expanded, Scales scales) {
  if (scales == Scales::kTensor) return expanded[0][0].clone();
  if (scales == Scales::kRow) return expanded.slice(1, 0, 1).contiguous();
  return expanded.slice(0, 0, c10::nullopt, 128).slice(1, 0, c10::nullopt, 128).contiguous();
}

absl::Status WriteFolder(const std::string& folder, const nlohmann::json& config,
                         const Tensors& tensors) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << config.dump();
  std::vector<TensorToWrite> views;
  for (const auto& [name, tensor] : tensors) {
    views.push_back({name,
                     {.type = ToStoredType(*FromScalarType(tensor.scalar_type())),
                      .shape = tensor.sizes().vec(),
                      .bytes = {static_cast<const char*>(tensor.const_data_ptr()),
                                static_cast<size_t>(tensor.nbytes())}}});
  }
  return WriteSafetensors(folder + "/model.safetensors", views);
}

class Fp8FolderTest : public DeviceTest {
 protected:
  // Makes both folders from the model's: `fp8` and `plain`, which has the same numbers.
  absl::Status MakeFolders(Scales scales, const std::string& fp8, const std::string& plain) {
    REPRISE_ASSIGN_OR_RETURN(original_, DefaultModelFolder());
    REPRISE_ASSIGN_OR_RETURN(const Tensors tensors, ReadTensors(original_));
    std::ifstream file(original_ + "/config.json");
    nlohmann::json config = nlohmann::json::parse(file);
    Tensors small, wide;
    int num_quantised = 0;
    for (const auto& [name, tensor] : tensors) {
      small[name] = tensor;
      wide[name] = tensor;
      if (!absl::EndsWith(name, "proj.weight")) continue;
      ++num_quantised;
      const at::Tensor weight = tensor.to(at::kFloat);
      const at::Tensor expanded = ScalesOf(weight, scales);
      small[name] = (weight / expanded).to(at::ScalarType::Float8_e4m3fn);
      const char* const suffix = scales == Scales::kBlock ? "_scale_inv" : "_scale";
      small[absl::StrCat(name, suffix)] = Stored(expanded, scales);
      wide[name] = (small[name].to(at::kFloat) * expanded).to(at::kBFloat16);
    }
    EXPECT_EQ(num_quantised, 6 * 7);  // of each layer: q, k, v, o, gate, up, down
    REPRISE_RETURN_IF_ERROR(WriteFolder(plain, config, wide));
    config["quantization_config"] = {{"quant_method", "fp8"}};
    if (scales == Scales::kBlock) {
      config["quantization_config"]["weight_block_size"] = {128, 128};
    }
    return WriteFolder(fp8, config, small);
  }

  // The logits of kNumTokens given tokens behind each prompt, all requests together.
  absl::StatusOr<at::Tensor> LogitsOf(const std::string& path, DType dtype) {
    REPRISE_ASSIGN_OR_RETURN(const ModelFolder folder, ModelFolder::Open(path));
    REPRISE_ASSIGN_OR_RETURN(
        const std::unique_ptr<Model> model,
        LoadModel(folder.path, folder.config, {.weights = {.device = device(), .dtype = dtype}}));
    ModelEngineOptions options;
    options.runner = {.max_num_seqs = kNumRequests,
                      .max_num_tokens = 128,
                      .max_seq_len = 64,
                      .logits = {.step_logits = StepLogits::kOfEvery}};
    REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                             CreateEngine(model.get(), options));
    std::vector<Request> requests(kNumRequests);
    for (int i = 0; i < kNumRequests; ++i) {
      for (int j = 0; j < 5 + i; ++j) requests[i].prompt.push_back(100 + 37 * i + 11 * j);
      for (int j = 0; j < kNumTokens; ++j) requests[i].forced_tokens.push_back(50 + 7 * i + j);
      requests[i].max_new_tokens = kNumTokens;
    }
    LogitsRecorder recorder(kNumRequests);
    REPRISE_RETURN_IF_ERROR(Generate(*engine, requests, [&](int i, const TokenEvent& event) {
      return recorder.Record(i, *reprise::LogitsOf(*engine, event));
    }));
    std::vector<float> all;
    for (int i = 0; i < kNumRequests; ++i) {
      EXPECT_EQ(recorder.num_rows(i), kNumTokens);
      all.insert(all.end(), recorder.rows(i).begin(), recorder.rows(i).end());
    }
    return at::tensor(all).to(at::kDouble);
  }

  static double Difference(const at::Tensor& a, const at::Tensor& b) {
    return ((a - b).norm() / b.norm()).item<double>();
  }

  std::string original_;
};

TEST_F(Fp8FolderTest, ComputesAsItsDequantisedTwin) {
  const std::string base = absl::StrCat(testing::TempDir(), "/fp8_folder_", getpid());
  for (const Scales scales : {Scales::kTensor, Scales::kRow, Scales::kBlock}) {
    SCOPED_TRACE(static_cast<int>(scales));
    const std::string fp8 = base + "/fp8", plain = base + "/plain";
    const absl::Status made = MakeFolders(scales, fp8, plain);
    ASSERT_TRUE(made.ok()) << made;
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const auto small = LogitsOf(fp8, dtype);
      ASSERT_TRUE(small.ok()) << small.status();
      const auto wide = LogitsOf(plain, dtype);
      ASSERT_TRUE(wide.ok()) << wide.status();
      const auto exact = LogitsOf(original_, dtype);
      ASSERT_TRUE(exact.ok()) << exact.status();
      ASSERT_FALSE(small->isnan().any().item<bool>());
      // The same numbers, summed in another order, and of 16 bits rounded after each product.
      EXPECT_LT(Difference(*small, *wide), dtype == DType::kFloat32 ? 1e-4 : 0.02);
      // They are not those that were quantised.
      const double rounding = Difference(*small, *exact);
      EXPECT_GT(rounding, 0.005);
      EXPECT_LT(rounding, 0.3);
    }
  }
  std::filesystem::remove_all(base);
}

}  // namespace
}  // namespace reprise
