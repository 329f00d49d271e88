// Parts that are some rows of a stored tensor: q, k and v of one product, gate and up of another.

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/distributed/share.h"
#include "reprise/hf/safetensors_writer.h"
#include "reprise/hf/weights.h"

namespace reprise {
namespace {

using testing::HasSubstr;

constexpr int64_t kHeadDim = 50;  // so that blocks of 128 rows end within heads and within q and k
constexpr int64_t kQ = 6 * kHeadDim;
constexpr int64_t kKv = 3 * kHeadDim;
constexpr int64_t kRows = kQ + 2 * kKv;
constexpr int64_t kIn = 200;

struct Weights {
  Linear qkv;
  at::Tensor k;  // alone, without a copy
  at::Tensor choice_bias;
};

// q and k are unzipped head by head; each rank has its heads of q, k and v.
absl::StatusOr<Weights> ReadWeights(LinearBias bias, WeightSource& source) {
  const LayerReader in(source, "layer.");
  const auto part = [&](int64_t first_row, int64_t num_rows, std::optional<int> head) {
    const Share heads = ShareOf(num_rows / kHeadDim, source.ranks());
    return WeightPart{.name = "qkv_proj",
                      .num_rows = num_rows,
                      .unzipped_head = head,
                      .share = heads.Times(kHeadDim),
                      .first_row = first_row,
                      .num_stored_rows = kRows};
  };
  REPRISE_ASSIGN_OR_RETURN(
      Linear qkv,
      in.Projection({part(0, kQ, kHeadDim), part(kQ, kKv, kHeadDim), part(kQ + kKv, kKv, {})}, kIn,
                    bias));
  WeightPart k = part(4, 6, {});
  k.name = "plain";
  k.share.reset();
  k.num_stored_rows = 12;
  REPRISE_ASSIGN_OR_RETURN(at::Tensor alone, in.Rows({k}, {kIn}, WeightKind::kMatrix));
  REPRISE_ASSIGN_OR_RETURN(at::Tensor choice_bias, in.Float32("choice_bias", 9));
  return Weights{.qkv = std::move(qkv), .k = std::move(alone), .choice_bias = choice_bias};
}

at::Tensor Unzipped(const at::Tensor& rows) {
  std::vector<int64_t> pairs = {rows.size(0) / kHeadDim, kHeadDim / 2, 2};
  for (const int64_t size : rows.sizes().slice(1)) pairs.push_back(size);
  return rows.view(pairs).transpose(1, 2).reshape(rows.sizes());
}

// What a rank has of a fused tensor [kRows, ...].
at::Tensor ExpectedOf(const at::Tensor& fused, const Ranks& ranks) {
  std::vector<at::Tensor> parts;
  int64_t first_row = 0;
  for (const int64_t num_rows : {kQ, kKv, kKv}) {
    const Share rows = ShareOf(num_rows / kHeadDim, ranks).Times(kHeadDim);
    const at::Tensor own = fused.narrow(0, first_row + rows.begin, rows.size).contiguous();
    parts.push_back(parts.size() < 2 ? Unzipped(own) : own);
    first_row += num_rows;
  }
  return at::cat(parts);
}

class FusedWeightsTest : public testing::Test {
 protected:
  FusedWeightsTest() : folder_(std::filesystem::path(testing::TempDir()) / "fused_weights_test") {
    std::filesystem::create_directories(folder_);
    tensors_["layer.qkv_proj.weight"] = at::randn({kRows, kIn});
    tensors_["layer.qkv_proj.bias"] = at::randn({kRows});
    tensors_["layer.plain"] = at::randn({12, kIn});
    tensors_["layer.choice_bias"] = at::randn({9});
  }

  // Makes the product fp8, without a bias.
  void MakeScaled(const std::string& suffix, const at::Tensor& scales) {
    tensors_.erase("layer.qkv_proj.bias");
    tensors_["layer.qkv_proj.weight"] = at::randn({kRows, kIn}).to(at::ScalarType::Float8_e4m3fn);
    tensors_["layer.qkv_proj.weight" + suffix] = scales;
  }

  absl::StatusOr<Weights> Load(LinearBias bias, const Ranks& ranks = {},
                               std::optional<DType> dtype = {}) const {
    std::vector<TensorToWrite> views;
    for (const auto& [name, tensor] : tensors_) {
      views.push_back({name,
                       {.type = ToStoredType(*FromScalarType(tensor.scalar_type())),
                        .shape = tensor.sizes().vec(),
                        .bytes = {static_cast<const char*>(tensor.const_data_ptr()),
                                  static_cast<size_t>(tensor.nbytes())}}});
    }
    CHECK(WriteSafetensors((folder_ / "model.safetensors").string(), views).ok());
    const LoadWeightsOptions options = {.dtype = dtype, .ranks = ranks};
    return LoadWeights(
        folder_.string(), options, [](const std::string&) { return false; },
        [&](WeightSource& source) { return ReadWeights(bias, source); });
  }

  void ExpectScaledOnAllRanks(const at::Tensor& exact) const {
    for (const int world : {1, 2, 3}) {
      for (int rank = 0; rank < world; ++rank) {
        SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << world);
        const Ranks ranks = {.rank = rank, .world = world};
        const auto weights = Load(LinearBias::kNone, ranks, DType::kFloat32);
        ASSERT_TRUE(weights.ok()) << weights.status();
        EXPECT_EQ(weights->qkv.weight().scalar_type(), at::ScalarType::Float8_e4m3fn);
        EXPECT_TRUE(at::equal(weights->qkv.Dequantised(at::kDouble), ExpectedOf(exact, ranks)));
      }
    }
  }

  at::Tensor Values() const { return tensors_.at("layer.qkv_proj.weight").to(at::kDouble); }

  const std::filesystem::path folder_;
  std::map<std::string, at::Tensor> tensors_;
};

TEST_F(FusedWeightsTest, RanksReadTheirRowsOfEachPartWithTheirBiases) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int world : {1, 2, 3}) {
      for (int rank = 0; rank < world; ++rank) {
        SCOPED_TRACE(testing::Message() << dtype << ", rank " << rank << " of " << world);
        const Ranks ranks = {.rank = rank, .world = world};
        const auto weights = Load(LinearBias::kAdded, ranks, dtype);
        ASSERT_TRUE(weights.ok()) << weights.status();
        const auto expected = [&](const char* name) {
          return ExpectedOf(tensors_.at(name).to(ToScalarType(dtype)), ranks);
        };
        EXPECT_TRUE(at::equal(weights->qkv.weight(), expected("layer.qkv_proj.weight")));
        ASSERT_TRUE(weights->qkv.bias().has_value());
        EXPECT_TRUE(at::equal(*weights->qkv.bias(), expected("layer.qkv_proj.bias")));
        EXPECT_TRUE(at::equal(weights->k,
                              tensors_.at("layer.plain").narrow(0, 4, 6).to(ToScalarType(dtype))));
      }
    }
  }
}

TEST_F(FusedWeightsTest, RanksReadTheirScalesOfEachPart) {
  const at::Tensor rows = at::rand({kRows, 1});
  MakeScaled("_scale", rows.to(at::kBFloat16));
  ExpectScaledOnAllRanks(Values() * rows.to(at::kBFloat16).to(at::kDouble));
  MakeScaled("_scale", at::full({1}, 0.37f));
  ExpectScaledOnAllRanks(Values() * static_cast<double>(0.37f));
}

TEST_F(FusedWeightsTest, BlocksOfScalesMayBeginWithinAPart) {
  static_assert(kQ % 128 != 0);
  const at::Tensor blocks = at::rand({(kRows + 127) / 128, 2});
  MakeScaled("_scale_inv", blocks);
  ExpectScaledOnAllRanks(Values() * blocks.to(at::kDouble)
                                        .repeat_interleave(128, 0)
                                        .narrow(0, 0, kRows)
                                        .repeat_interleave(128, 1)
                                        .narrow(1, 0, kIn));
}

TEST_F(FusedWeightsTest, RejectsScalesThatDoNotFitTheStoredTensor) {
  // One for each part, and those of q alone.
  for (const at::Tensor& scales : {at::rand({3}), at::rand({kQ, 1})}) {
    MakeScaled("_scale", scales);
    const absl::Status status = Load(LinearBias::kNone, {}, DType::kFloat32).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("the scales of layer.qkv_proj.weight must be [1], [600, 1] or [5, 2]"));
  }
}

TEST_F(FusedWeightsTest, ATensorIsListedOnceAndWhole) {
  const auto tensors =
      ListTensors([](WeightSource& source) { return ReadWeights(LinearBias::kAdded, source); });
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  std::string list;
  for (const ExpectedTensor& tensor : *tensors) {
    list += tensor.name + " " + ShapeString(tensor.shape) + "; ";
  }
  EXPECT_EQ(list,
            "layer.qkv_proj.weight [600, 200]; layer.qkv_proj.bias [600]; layer.plain [12, 200]; "
            "layer.choice_bias [9]; ");
  tensors_["layer.qkv_proj.weight"] = at::zeros({kRows - 1, kIn});
  EXPECT_THAT(std::string(Load(LinearBias::kAdded).status().message()),
              HasSubstr("layer.qkv_proj.weight must be [600, 200], got [599, 200]"));
}

TEST_F(FusedWeightsTest, DiesIfRequestsDisagreeOnATensorOrLeaveIt) {
  const auto list = [](std::vector<WeightPart> parts) {
    return ListTensors([&](WeightSource& source) {
      return LayerReader(source, "").Rows(parts, {2}, WeightKind::kMatrix);
    });
  };
  EXPECT_TRUE(list({{.name = "x", .num_rows = 3}, {.name = "x", .num_rows = 3}}).ok());
  EXPECT_DEATH((void)list({{.name = "x", .num_rows = 3}, {.name = "x", .num_rows = 4}}),
               "x is requested as \\[3, 2\\] and as \\[4, 2\\]");
  EXPECT_DEATH((void)list({{.name = "x", .num_rows = 3, .first_row = 2, .num_stored_rows = 4}}),
               "x: 3 rows from 2 on of 4");
  EXPECT_DEATH((void)list({{.name = "x", .num_rows = 3, .first_row = 1}}),
               "x: 3 rows from 1 on of 3");
}

TEST_F(FusedWeightsTest, Float32VectorsKeepTheirValuesInAnyModel) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const at::ScalarType stored : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      tensors_["layer.choice_bias"] = at::randn({9}).to(stored);
      const auto weights = Load(LinearBias::kAdded, {}, dtype);
      ASSERT_TRUE(weights.ok()) << weights.status();
      EXPECT_EQ(weights->choice_bias.scalar_type(), at::kFloat);
      EXPECT_TRUE(at::equal(weights->choice_bias, tensors_.at("layer.choice_bias").to(at::kFloat)));
      EXPECT_EQ(weights->qkv.weight().scalar_type(), ToScalarType(dtype));
      const auto shapes =
          ShapesOf([](WeightSource& source) { return ReadWeights(LinearBias::kAdded, source); });
      ASSERT_TRUE(shapes.ok()) << shapes.status();
      EXPECT_TRUE(
          CheckWeights({Named("bias", shapes->choice_bias)}, {Named("bias", weights->choice_bias)})
              .ok());
    }
  }
  tensors_["layer.choice_bias"] = at::zeros({9}).to(at::ScalarType::Float8_e4m3fn);
  EXPECT_THAT(std::string(Load(LinearBias::kAdded).status().message()),
              HasSubstr("layer.choice_bias must be of 16, 32 or 64 bit floats"));
}

TEST_F(FusedWeightsTest, ARankReadsItsPartOfAFloat32Vector) {
  const auto read = [](WeightSource& source) -> absl::StatusOr<at::Tensor> {
    return LayerReader(source, "").Float32("x", 9, ShareOf(9, source.ranks()));
  };
  const Ranks ranks = {.rank = 1, .world = 2};
  EXPECT_EQ(ShapesOf(read, ranks)->size(0), ShareOf(9, ranks).size);
}

}  // namespace
}  // namespace reprise
