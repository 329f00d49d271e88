// Times matrix products of few rows on a GPU: cuBLASLt's quickest proposal, the kernel for up to 8
// rows, the kernel by tiles (runner/ops/few_rows), and those with weights of 8 bits (runner/ops/fp8:
// by rings and by tiles, a scale for each row, and one for each row and 128 in_features), as shares
// of the card's read bandwidth, each of its own weight's bytes. From 65 rows on cuBLASLt is alone.
//
//   linear_bench                                        all shapes, chosen numbers of rows
//   linear_bench --shapes=8b --rows=32,64 --verbose     every form of the kernels, too
//
// Weights are cold: each replay goes through more than 1 GB of them. Products follow one another in
// a captured graph. "alone": weights are read after the product before has ended. "chain": before
// that, as in a captured step, whatever the kernel can do.

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>

#include <algorithm>
#include <iostream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/runner/ops/cublaslt_plan.h"
#include "reprise/runner/ops/few_rows/tile_linear.h"
#include "reprise/runner/ops/fp8/fp8_linear.h"
#include "reprise/runner/ops/fp8/fp8_tile_linear.h"
#include "reprise/runner/ops/skinny_linear_args.h"
#include "tests/benchmarks/device/memory_rates.h"
#include "tests/benchmarks/device/replay_timer.h"

ABSL_FLAG(std::string, shapes, "", "only shapes whose name contains this, such as 8b or gate_up");
ABSL_FLAG(std::vector<std::string>, rows,
          std::vector<std::string>({"1", "4", "8", "16", "32", "64", "96", "128"}), "rows of x");
ABSL_FLAG(int, proposals, 16, "of cuBLASLt, which are timed");
ABSL_FLAG(std::vector<std::string>, forms, {},
          "forms of the kernel by tiles, as cluster:row_groups:turns:boxes; default: all that may "
          "be quick");
ABSL_FLAG(bool, fp8, true, "times products with weights of 8 bits, too");
ABSL_FLAG(bool, verbose, false, "prints the time of every form");

namespace reprise {
namespace {

constexpr int64_t kColdBytes = int64_t{1} << 30;
constexpr int kMaxRows = 256;  // of x
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

struct Shape {
  const char* name;
  int in_features;
  int out_features;
};

// Of llama-3.1-8b and llama-3.2-1b; of a 70B model on each of 2 and of 4 ranks.
constexpr Shape kShapes[] = {
    {"8b.qkv", 4096, 6144},         {"8b.o", 4096, 4096},           {"8b.gate_up", 4096, 28672},
    {"8b.down", 14336, 4096},       {"8b.head", 4096, 128256},      {"1b.qkv", 2048, 3072},
    {"1b.o", 2048, 2048},           {"1b.gate_up", 2048, 16384},    {"1b.down", 8192, 2048},
    {"1b.head", 2048, 128256},      {"70b/2.qkv", 8192, 5120},      {"70b/2.o", 4096, 8192},
    {"70b/2.gate_up", 8192, 28672}, {"70b/2.down", 14336, 8192},    {"70b/4.qkv", 8192, 2560},
    {"70b/4.o", 2048, 8192},        {"70b/4.gate_up", 8192, 14336}, {"70b/4.down", 7168, 8192},
};

constexpr float kNever = std::numeric_limits<float>::infinity();

struct Best {
  float us = kNever;
  std::string name;

  void Take(float other_us, const std::string& other_name) {
    if (other_us < us) {
      us = other_us;
      name = other_name;
    }
  }
};

// Those of the flag; none: those of TileFormsToTry().
absl::StatusOr<std::vector<TileForm>> Forms() {
  std::vector<TileForm> forms;
  for (const std::string& text : absl::GetFlag(FLAGS_forms)) {
    const std::vector<std::string> parts = absl::StrSplit(text, ':');
    TileForm form;
    if (parts.size() != 4 || !absl::SimpleAtoi(parts[0], &form.cluster) ||
        !absl::SimpleAtoi(parts[1], &form.row_groups) || !absl::SimpleAtoi(parts[2], &form.turns) ||
        !absl::SimpleAtoi(parts[3], &form.boxes)) {
      return absl::InvalidArgumentError("--forms: expected like 4:2:1:1,2:2:2:2");
    }
    forms.push_back(form);
  }
  return forms;
}

std::string Name(const TileForm& form) {
  return absl::StrCat(form.cluster, ":", form.row_groups, ":", form.turns, ":", form.boxes);
}

// A shape with one number of rows, over rotated weights.
class ProductCase {
 public:
  ProductCase(const Shape& shape, int num_rows, const at::Tensor& weights, const at::Tensor& x,
              const at::Tensor& out)
      : shape_(shape),
        num_rows_(num_rows),
        weights_(weights),
        x_(x),
        out_(out),
        copies_(std::max<int64_t>(1, kColdBytes / WeightBytes())) {}

  int64_t WeightBytes() const { return int64_t{2} * shape_.in_features * shape_.out_features; }

  SkinnyLinearArgs Args(int copy, SkinnyWeights when) const {
    return {.x = x_.const_data_ptr(),
            .x_stride = shape_.in_features,
            .weight = static_cast<const char*>(weights_.const_data_ptr()) + copy * WeightBytes(),
            .weight_stride = shape_.in_features,
            .out = out_.mutable_data_ptr(),
            .out_stride = shape_.out_features,
            .num_rows = num_rows_,
            .out_features = shape_.out_features,
            .in_features = shape_.in_features,
            .weights = when};
  }

  // Microseconds of a product; kNever if it cannot run.
  template <typename Launch>
  float Time(Launch launch) const {
    const absl::StatusOr<Timing> timing = TimeReplays(
        [&]() -> absl::Status {
          for (int64_t copy = 0; copy < copies_; ++copy) {
            REPRISE_RETURN_IF_ERROR(launch(static_cast<int>(copy)));
          }
          return absl::OkStatus();
        },
        {.num_warmups = 1, .num_samples = 5, .replays_per_sample = 1});
    return timing.ok() ? static_cast<float>(timing->median_us / copies_) : kNever;
  }

  absl::StatusOr<Best> TimeCublas(cublasLtHandle_t handle, const LinearWorkspace& workspace) const {
    const LinearKey key = {.num_rows = num_rows_,
                           .out_features = shape_.out_features,
                           .in_features = shape_.in_features,
                           .x_stride = shape_.in_features,
                           .weight_stride = shape_.in_features,
                           .out_stride = shape_.out_features,
                           .dtype = DType::kBFloat16,
                           .out_dtype = DType::kBFloat16};
    REPRISE_ASSIGN_OR_RETURN(CublasLtPlan plan, CublasLtPlan::Create(key));
    REPRISE_ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulAlgo_t> candidates,
                             plan.Candidates(handle, workspace.bytes,
                                             absl::GetFlag(FLAGS_proposals), SplitSum::kAllowed));
    Best best;
    for (const cublasLtMatmulAlgo_t& candidate : candidates) {
      best.Take(Time([&](int copy) {
                  const SkinnyLinearArgs args = Args(copy, SkinnyWeights::kEarly);
                  return plan.Run(handle, candidate,
                                  {.x = args.x, .weight = args.weight, .out = args.out}, workspace,
                                  c10::cuda::getCurrentCUDAStream());
                }),
                "");
    }
    return best;
  }

  Best TimeSkinny(SkinnyWeights when) const {
    Best best;
    if (num_rows_ > kMaxSkinnyRows) return best;
    for (int strip = 1; strip <= kMaxSkinnyStrip; ++strip) {
      best.Take(Time([&](int copy) {
                  return LaunchSkinnyLinear(Args(copy, when), strip,
                                            c10::cuda::getCurrentCUDAStream());
                }),
                absl::StrCat(strip));
    }
    return best;
  }

  // Of 8 bits: the memory holds twice as many weights. `scales` [at least out_features, num_groups].
  Fp8LinearArgs Fp8Args(int copy, const at::Tensor& scales, bool has_groups) const {
    const SkinnyLinearArgs plain = Args(0, SkinnyWeights::kEarly);
    const int num_groups = has_groups ? shape_.in_features / kFp8Group : 1;
    return {.x = plain.x,
            .x_stride = plain.x_stride,
            .weight = {.values = static_cast<const uint8_t*>(weights_.const_data_ptr()) +
                                 copy * (WeightBytes() / 2),
                       .stride = shape_.in_features,
                       .scales = scales.const_data_ptr<float>(),
                       .scales_stride = num_groups,
                       .num_groups = num_groups,
                       .out_features = shape_.out_features,
                       .in_features = shape_.in_features},
            .out = plain.out,
            .out_stride = plain.out_stride,
            .num_rows = num_rows_,
            .weights = SkinnyWeights::kEarly};
  }

  bool IsTimedWithFp8() const {
    return absl::GetFlag(FLAGS_fp8) && num_rows_ <= kMaxTileLinearRows;
  }

  // The time of two copies, of half the size each.
  template <typename Launch>
  float TimeHalves(Launch launch) const {
    return Time([&](int copy) -> absl::Status {
             for (const int half : {0, 1}) REPRISE_RETURN_IF_ERROR(launch(2 * copy + half));
             return absl::OkStatus();
           }) /
           2;
  }

  Best TimeFp8(const at::Tensor& scales, bool has_groups) const {
    Best best;
    if (!IsTimedWithFp8() || !Fp8LinearServes(Fp8Args(0, scales, has_groups))) return best;
    best.Take(TimeHalves([&](int copy) {
                return LaunchFp8Linear(Fp8Args(copy, scales, has_groups),
                                       c10::cuda::getCurrentCUDAStream());
              }),
              "");
    return best;
  }

  // By the form of the rule, or the quickest of `forms`.
  Best TimeFp8Tile(const at::Tensor& scales, bool has_groups,
                   absl::Span<const TileForm> forms) const {
    Best best;
    if (!IsTimedWithFp8()) return best;
    const TileForm rule = Fp8TileForm(num_rows_, shape_.out_features);
    if (forms.empty()) forms = absl::MakeConstSpan(&rule, 1);
    for (const TileForm& form : forms) {
      const absl::StatusOr<Fp8TilePlan> plan = Fp8TilePlanOf(Fp8Args(0, scales, has_groups), form);
      if (!plan.ok()) continue;
      const float us = TimeHalves([&](int copy) {
        return LaunchFp8TileLinear(Fp8Args(copy, scales, has_groups), form,
                                   c10::cuda::getCurrentCUDAStream());
      });
      if (absl::GetFlag(FLAGS_verbose)) {
        std::cout << absl::StrFormat(
            "  fp8 %s %s: %.1f us, %d tiles of %d rows in %d clusters, %d stages of %d bytes\n",
            has_groups ? "groups" : "rows", Name(form), us, plan->num_tiles, plan->tile_rows,
            plan->num_clusters, plan->stages, plan->stage_bytes());
      }
      best.Take(us, Name(form));
    }
    return best;
  }

  Best TimeTile(SkinnyWeights when, absl::Span<const TileForm> forms) const {
    Best best;
    if (num_rows_ > kMaxTileLinearRows) return best;
    if (forms.empty()) forms = TileFormsToTry(num_rows_);
    for (const TileForm& form : forms) {
      if (!TileLinearPlanOf(Args(0, when), form).ok()) continue;
      const float us = Time([&](int copy) {
        return LaunchTileLinear(Args(copy, when), form, c10::cuda::getCurrentCUDAStream());
      });
      if (absl::GetFlag(FLAGS_verbose)) {
        const absl::StatusOr<TileLinearPlan> plan = TileLinearPlanOf(Args(0, when), form);
        std::cout << absl::StrFormat(
            "  %s %s: %.1f us", when == SkinnyWeights::kEarly ? "chain" : "alone", Name(form), us);
        if (plan.ok()) {
          std::cout << absl::StrFormat(
              ", %d tiles of %d rows in %d clusters, %d stages of %d bytes", plan->num_tiles,
              plan->tile_rows, plan->num_clusters, plan->stages, plan->stage_bytes());
        }
        std::cout << "\n";
      }
      best.Take(us, Name(form));
    }
    return best;
  }

 private:
  Shape shape_;
  int num_rows_;
  at::Tensor weights_, x_, out_;
  int64_t copies_;
};

// "56.4  91 % 4:2:1"
std::string Cell(const Best& best, double weight_bytes, double read_tb_per_s) {
  if (best.us == kNever) return absl::StrFormat("%20s", "-");
  const double share = weight_bytes / (best.us * 1e6) / read_tb_per_s;
  return absl::StrFormat("%7.1f %3.0f %% %-8s", best.us, 100 * share, best.name);
}

absl::Status Run() {
  return CatchTorch([]() -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(const MemoryRates limits, MeasureMemoryRates());
    REPRISE_ASSIGN_OR_RETURN(const std::vector<TileForm> forms, Forms());
    std::cout << absl::StrFormat(
        "read %.2f TB/s\n%-14s %4s | %-20s | %-20s | %-20s | %-20s | %-20s | %-20s | %-20s | %-20s "
        "| %-20s\n",
        limits.read_tb_per_s, "shape", "rows", "cuBLASLt, us", "few rows alone", "tiles alone",
        "few rows, chain", "tiles, chain", "fp8 by rows, chain", "fp8 by groups, chain",
        "the same by tiles", "the same by tiles");
    const at::TensorOptions options = at::TensorOptions(c10::kCUDA).dtype(at::kBFloat16);
    const at::Tensor weights = at::randn({kColdBytes / 2 + (int64_t{32} << 20)}, options);
    const at::Tensor x = at::randn({kMaxRows * 16384}, options);
    const at::Tensor out = at::empty({kMaxRows * 131072}, options);
    const at::Tensor scales = at::ones({int64_t{131072} * 64}, options.dtype(at::kFloat));
    const at::Tensor scratch = at::empty({kWorkspaceBytes}, options.dtype(at::kByte));
    cublasLtHandle_t handle = nullptr;
    REPRISE_RETURN_IF_ERROR(FromCublas(cublasLtCreate(&handle), "Create"));
    const LinearWorkspace workspace = {.data = scratch.mutable_data_ptr(),
                                       .bytes = kWorkspaceBytes};
    for (const Shape& shape : kShapes) {
      if (!absl::StrContains(shape.name, absl::GetFlag(FLAGS_shapes))) continue;
      for (const std::string& rows : absl::GetFlag(FLAGS_rows)) {
        int num_rows = 0;
        if (!absl::SimpleAtoi(rows, &num_rows) || num_rows < 1 || num_rows > kMaxRows) {
          return absl::InvalidArgumentError(
              absl::StrCat("--rows: expected 1 to ", kMaxRows, ", got ", rows));
        }
        const ProductCase product(shape, num_rows, weights, x, out);
        REPRISE_ASSIGN_OR_RETURN(const Best cublas, product.TimeCublas(handle, workspace));
        const auto cell = [&](const Best& best) {
          return Cell(best, product.WeightBytes(), limits.read_tb_per_s);
        };
        const auto fp8_cell = [&](bool has_groups) {
          return Cell(product.TimeFp8(scales, has_groups), product.WeightBytes() / 2,
                      limits.read_tb_per_s);
        };
        const auto fp8_tile_cell = [&](bool has_groups) {
          return Cell(product.TimeFp8Tile(scales, has_groups, forms), product.WeightBytes() / 2,
                      limits.read_tb_per_s);
        };
        std::cout << absl::StrFormat(
                         "%-14s %4d | %s | %s | %s | %s | %s | %s | %s | %s | %s\n", shape.name,
                         num_rows, cell(cublas),
                         cell(product.TimeSkinny(SkinnyWeights::kAfterKernelBefore)),
                         cell(product.TimeTile(SkinnyWeights::kAfterKernelBefore, forms)),
                         cell(product.TimeSkinny(SkinnyWeights::kEarly)),
                         cell(product.TimeTile(SkinnyWeights::kEarly, forms)), fp8_cell(false),
                         fp8_cell(true), fp8_tile_cell(false), fp8_tile_cell(true))
                  << std::flush;
      }
    }
    cublasLtDestroy(handle);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Times matrix products of few rows on a GPU.");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = reprise::Run();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
