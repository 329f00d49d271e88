// Empty in builds without CUDA.
#ifdef REPRISE_WITH_CUDA

#include "reprise/runner/ops/cublaslt_linear_context.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"
#include "reprise/runner/ops/choices/choice_file.h"
#include "reprise/runner/ops/choices/remembered_choice.h"
#include "reprise/runner/ops/cublaslt_plan.h"
#include "reprise/runner/ops/elementwise_args.h"
#include "reprise/runner/ops/few_rows/tile_linear.h"
#include "reprise/runner/ops/fp8/fp8_linear.h"
#include "reprise/runner/ops/fp8/fp8_tile_linear.h"
#include "reprise/runner/ops/skinny_linear_args.h"

namespace reprise {
namespace {

// Number of rows for which the library proposes the algorithm of a weight in deterministic mode: a
// medium batch size.
constexpr int64_t kDeterministicRows = 128;

// Number of timed runs. The shortest run counts, because noise only adds time.
constexpr int kTimedRuns = 5;

// Smaller weights are not timed: reading them takes no longer than a launch. A measurement would be
// mostly noise, and the same model might not compute bitwise identical results in another run.
constexpr int64_t kMinTimedWeightBytes = int64_t{4} << 20;

// The first candidate whose time is at most this factor times the shortest time is kept.
constexpr float kCloseToBest = 1.05f;

// Results differ between forms of the tile kernel. The first form whose time is at most this factor
// times the shortest time is kept.
constexpr float kCloseToBestForm = 1.02f;

// Time that the project's kernels save in a captured step, which timing a single GEMM does not
// show: their weights are loaded before the previous kernel ends, whereas a cuBLASLt kernel waits
// for the previous kernel. Measured on an H200 with an 8B model and 1 row: 32 layers of four GEMMs,
// with the small kernels between them, take 3.71 ms with the kernel for up to 8 rows and 4.21 ms
// with cuBLASLt. The difference is 3.9 us per GEMM.
constexpr float kEarlyStartUs = 2.0f;

// The same for the tile kernel: the time saved between the end of a GEMM and the start of the next
// GEMM that follows it directly. Norms and activations between GEMMs add to the saving, but with
// many rows of x the kernel's tiles slow down the neighbouring kernels. Steps of an 8B model on an
// H200 with context 1,024, and with 1, 2 and 3 us for all shapes: 5.59, 5.56 and 5.51 ms with 32
// rows; 6.86, 6.88 and 6.98 ms with 64 rows.
constexpr float kEarlyStartOfTilesUs = 1.0f;
constexpr float kEarlyStartOfSmallTilesUs = 3.0f;
constexpr int64_t kMaxSmallTileRows = 32;  // rows of x

// Increased when a change of one of the project's kernels affects its speed or its results: choices
// stored for other versions are then ignored.
constexpr int kOwnKernels = 4;

// An 8-bit weight is multiplied in parts of about kPartBytes in x's dtype, which stay in the L2
// cache from one kernel to the next. All parts except the last have at least kMinPartRows rows.
constexpr int64_t kPartBytes = int64_t{24} << 20;
constexpr int64_t kMinPartRows = 256;

// The time assigned to a candidate that fails.
constexpr float kCannotRun = std::numeric_limits<float>::infinity();

struct DestroyHandle {
  void operator()(cublasLtHandle_t handle) const { cublasLtDestroy(handle); }
};
using Handle = std::unique_ptr<cublasLtContext, DestroyHandle>;

struct DestroyEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<CUevent_st, DestroyEvent>;

absl::StatusOr<Event> MakeEvent() {
  cudaEvent_t raw = nullptr;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&raw), "cudaEventCreate"));
  return Event(raw);
}

// Returns the largest power of two up to 16 that divides a pointer.
int AlignmentOf(const void* pointer) {
  int alignment = 16;
  while (reinterpret_cast<uintptr_t>(pointer) % alignment != 0) alignment /= 2;
  return alignment;
}

// Returns the row stride as a leading dimension, of a matrix or a batch of matrices. The stride of
// a single row is not used and may have any value.
int64_t RowStride(const at::Tensor& matrix) {
  return std::max(matrix.size(-2) == 1 ? matrix.size(-1) : matrix.stride(-2), matrix.size(-1));
}

// Returns the number of elements between consecutive matrices of a batch.
int64_t ProductStride(const at::Tensor& matrices) {
  return matrices.dim() == 3 ? matrices.stride(0) : 0;
}

LinearKey KeyOf(const at::Tensor& x, const at::Tensor& weight, bool has_bias,
                const at::Tensor& out) {
  return {
      .num_rows = x.size(-2),
      .out_features = weight.size(-2),
      .in_features = weight.size(-1),
      .x_stride = RowStride(x),
      .weight_stride = RowStride(weight),
      .out_stride = RowStride(out),
      .dtype = *FromScalarType(x.scalar_type()),
      .out_dtype = *FromScalarType(out.scalar_type()),
      .has_bias = has_bias,
      .num_products = weight.dim() == 3 ? weight.size(0) : 1,
      .x_product_stride = ProductStride(x),
      .weight_product_stride = ProductStride(weight),
      .out_product_stride = ProductStride(out),
      .x_alignment = AlignmentOf(x.const_data_ptr()),
      .weight_alignment = AlignmentOf(weight.const_data_ptr()),
      .out_alignment = AlignmentOf(out.const_data_ptr()),
  };
}

SkinnyLinearArgs SkinnyArgsOf(const LinearKey& key, const LinearPointers& pointers) {
  SkinnyLinearArgs args = {.dtype = key.dtype,
                           .out_dtype = key.out_dtype,
                           .x = pointers.x,
                           .x_stride = key.x_stride,
                           .weight = pointers.weight,
                           .weight_stride = key.weight_stride,
                           .bias = pointers.bias,
                           .out = pointers.out,
                           .out_stride = key.out_stride};
  if (key.gate.has_value()) {
    args.is_gated = true;
    args.activation = *key.gate;
    args.out = pointers.gated;
    args.out_stride = key.gated_stride;
  }
  // A batch of GEMMs, more than kMaxWideTileRows rows, or a size beyond int is not supported:
  // num_rows stays 0.
  if (key.num_products > 1 || key.num_rows > kMaxWideTileRows ||
      std::max(key.out_features, key.in_features) > std::numeric_limits<int>::max()) {
    return args;
  }
  args.num_rows = static_cast<int>(key.num_rows);
  args.out_features = static_cast<int>(key.out_features);
  args.in_features = static_cast<int>(key.in_features);
  return args;
}

Fp8LinearArgs Fp8ArgsOf(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& scales,
                        const at::Tensor* bias, const at::Tensor& out) {
  Fp8LinearArgs args = {.dtype = *FromScalarType(x.scalar_type()),
                        .out_dtype = *FromScalarType(out.scalar_type()),
                        .x = x.const_data_ptr(),
                        .x_stride = RowStride(x),
                        .weight = {.values = static_cast<const uint8_t*>(weight.const_data_ptr()),
                                   .stride = RowStride(weight),
                                   .scales = scales.const_data_ptr<float>(),
                                   .scales_stride = RowStride(scales),
                                   .num_groups = static_cast<int>(scales.size(1)),
                                   .out_features = static_cast<int>(weight.size(0)),
                                   .in_features = static_cast<int>(weight.size(1))},
                        .bias = bias != nullptr ? bias->const_data_ptr() : nullptr,
                        .out = out.mutable_data_ptr(),
                        .out_stride = RowStride(out)};
  // A number of rows beyond int is not supported: num_rows stays 0.
  if (x.size(0) <= std::numeric_limits<int>::max()) args.num_rows = static_cast<int>(x.size(0));
  return args;
}

absl::StatusOr<bool> IsCapturing(cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing"));
  return capture != cudaStreamCaptureStatusNone;
}

template <typename Value>
Value ConfigOf(const cublasLtMatmulAlgo_t& algorithm,
               cublasLtMatmulAlgoConfigAttributes_t attribute) {
  Value value = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), nullptr);
  return value;
}

class CublasLtLinearContext : public LinearContext {
 public:
  CublasLtLinearContext(c10::Device device, const CublasLtOptions& options, Handle handle,
                        at::Tensor workspace)
      : device_(device),
        options_(options),
        handle_(std::move(handle)),
        workspace_(std::move(workspace)) {
    if (options.choices_file.empty() || options.deterministic) return;
    const cudaDeviceProp* const properties = at::cuda::getDeviceProperties(device.index());
    device_name_ = absl::StrCat(properties->name, ", ", properties->multiProcessorCount,
                                " SMs, cublasLt ", cublasLtGetVersion(), ", kernels ", kOwnKernels);
    remembered_.emplace(options.choices_file);
  }

  absl::Status Multiply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor* bias,
                        const at::Tensor& out) override {
    REPRISE_RETURN_IF_ERROR(CheckDevice("x", x, device_));
    return CatchTorch([&]() -> absl::Status {
      const c10::cuda::CUDAGuard guard(device_);
      const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_.index());
      const LinearPointers pointers = {
          .x = x.const_data_ptr(),
          .weight = weight.const_data_ptr(),
          .bias = bias != nullptr ? bias->const_data_ptr() : nullptr,
          .out = out.mutable_data_ptr(),
      };
      return MultiplyKeyed(KeyOf(x, weight, bias != nullptr, out), pointers, WeightMemory::kKept,
                           stream);
    });
  }

  absl::Status MultiplyGated(Activation activation, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor* bias, const at::Tensor& gate_up,
                             const at::Tensor& out) override {
    REPRISE_RETURN_IF_ERROR(CheckDevice("x", x, device_));
    return CatchTorch([&]() -> absl::Status {
      const c10::cuda::CUDAGuard guard(device_);
      const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_.index());
      LinearKey key = KeyOf(x, weight, bias != nullptr, gate_up);
      key.gate = activation;
      key.gated_stride = RowStride(out);
      const LinearPointers pointers = {
          .x = x.const_data_ptr(),
          .weight = weight.const_data_ptr(),
          .bias = bias != nullptr ? bias->const_data_ptr() : nullptr,
          .out = gate_up.mutable_data_ptr(),
          .gated = out.mutable_data_ptr(),
      };
      return MultiplyKeyed(key, pointers, WeightMemory::kKept, stream);
    });
  }

  absl::Status MultiplyScaled(const at::Tensor& x, const at::Tensor& weight,
                              const at::Tensor& scales, const at::Tensor* bias,
                              const at::Tensor& out) override {
    REPRISE_RETURN_IF_ERROR(CheckDevice("x", x, device_));
    if (std::max(weight.size(0), weight.size(1)) > std::numeric_limits<int>::max()) {
      return absl::UnimplementedError(
          absl::StrCat("an 8-bit weight must be smaller: expected sizes below 2^31, got ",
                       weight.size(1), " -> ", weight.size(0)));
    }
    return CatchTorch([&]() -> absl::Status {
      const c10::cuda::CUDAGuard guard(device_);
      const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_.index());
      REPRISE_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(stream));
      Fp8LinearArgs args = Fp8ArgsOf(x, weight, scales, bias, out);
      if (capturing) args.weights = SkinnyWeights::kEarly;
      // LaunchFp8Linear() computes a row's results independently of the number of rows. The results
      // of the other kernels differ from these, so deterministic mode prefers LaunchFp8Linear() for
      // any number of rows.
      if (!options_.deterministic && args.num_rows > kMaxSkinnyRows && Fp8TileLinearServes(args)) {
        const TileForm form = Fp8TileForm(args.num_rows, args.weight.out_features);
        const absl::Status status = LaunchFp8TileLinear(args, form, stream);
        // Devices of another compute capability cannot run the kernel.
        if (!absl::IsUnimplemented(status)) return status;
      }
      if (Fp8LinearServes(args) && (options_.deterministic || x.size(0) <= kMaxFp8Rows)) {
        return LaunchFp8Linear(args, stream);
      }
      return MultiplyParts(args.weight, x, bias, out, capturing, stream);
    });
  }

  void SetTiming(LinearTiming timing) override { timing_ = timing; }

  bool is_deterministic() const override { return options_.deterministic; }
  std::vector<LinearChoice> Choices() const override { return choices_; }

 private:
  struct Entry {
    LinearKey key;
    CublasLtPlan plan;
    cublasLtMatmulAlgo_t algorithm;
    int skinny_strip = 0;                              // above 0: LaunchSkinnyLinear() is used
    std::optional<TileForm> tile_form = std::nullopt;  // if set: LaunchTileLinear() is used
  };

  // Whether a GEMM's weight is written before a captured graph is launched, or within the graph by
  // the previous kernel.
  enum class WeightMemory : int8_t { kKept, kJustWritten };

  absl::Status MultiplyKeyed(const LinearKey& key, const LinearPointers& pointers,
                             WeightMemory memory, cudaStream_t stream) {
    auto entry = entries_.find(key);
    if (entry == entries_.end()) {
      REPRISE_ASSIGN_OR_RETURN(Entry made, MakeEntry(key, pointers, stream));
      entry = entries_.emplace(key, std::move(made)).first;
    }
    return Run(entry->second, pointers, memory, stream);
  }

  // Converts the weight to x's dtype in scratch memory, part by part, and multiplies x by each
  // part.
  absl::Status MultiplyParts(const Fp8Weight& weight, const at::Tensor& x, const at::Tensor* bias,
                             const at::Tensor& out, bool capturing, cudaStream_t stream) {
    const int64_t row_bytes = weight.in_features * x.element_size();
    const int64_t part_rows = std::min<int64_t>(
        weight.out_features,
        std::max(kMinPartRows, kPartBytes / row_bytes / kMinPartRows * kMinPartRows));
    if (!part_.defined() || part_.numel() < part_rows * row_bytes) {
      if (capturing) {
        return absl::FailedPreconditionError(
            "the first GEMM with an 8-bit weight allocates scratch memory, which is not possible "
            "during capture: warm up before capturing");
      }
      // Captured graphs may still read the smaller buffer.
      if (part_.defined()) former_parts_.push_back(part_);
      part_ = at::empty({std::max(kPartBytes, part_rows * row_bytes)},
                        at::TensorOptions(device_).dtype(at::kByte));
    }
    const DType dtype = *FromScalarType(x.scalar_type());
    for (int64_t first = 0; first < weight.out_features; first += part_rows) {
      const int64_t num_rows = std::min(part_rows, weight.out_features - first);
      REPRISE_RETURN_IF_ERROR(LaunchDequantise(weight, static_cast<int>(first),
                                               static_cast<int>(num_rows), dtype,
                                               part_.mutable_data_ptr(), stream));
      const at::Tensor part = part_.narrow(0, 0, num_rows * row_bytes)
                                  .view(x.scalar_type())
                                  .view({num_rows, weight.in_features});
      const at::Tensor part_out = out.narrow(1, first, num_rows);
      const LinearPointers pointers = {
          .x = x.const_data_ptr(),
          .weight = part.const_data_ptr(),
          .bias = bias != nullptr ? bias->narrow(0, first, num_rows).const_data_ptr() : nullptr,
          .out = part_out.mutable_data_ptr(),
      };
      REPRISE_RETURN_IF_ERROR(MultiplyKeyed(KeyOf(x, part, bias != nullptr, part_out), pointers,
                                            WeightMemory::kJustWritten, stream));
    }
    return absl::OkStatus();
  }

  LinearWorkspace workspace() {
    return {.data = workspace_.mutable_data_ptr(), .bytes = options_.workspace_bytes};
  }

  absl::Status Run(Entry& entry, const LinearPointers& pointers, WeightMemory memory,
                   cudaStream_t stream) {
    if (entry.skinny_strip > 0 || entry.tile_form.has_value()) {
      SkinnyLinearArgs args = SkinnyArgsOf(entry.key, pointers);
      REPRISE_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(stream));
      // Kernels of a graph do not write kKept weights, and a launch of a graph waits for all
      // earlier work.
      if (capturing && memory == WeightMemory::kKept) args.weights = SkinnyWeights::kEarly;
      return entry.skinny_strip > 0 ? LaunchSkinnyLinear(args, entry.skinny_strip, stream)
                                    : LaunchTileLinear(args, *entry.tile_form, stream);
    }
    REPRISE_RETURN_IF_ERROR(
        entry.plan.Run(handle_.get(), entry.algorithm, pointers, workspace(), stream));
    const LinearKey& key = entry.key;
    if (!key.gate.has_value()) return absl::OkStatus();
    return LaunchElementwise({.function = GateFunctionOf(*key.gate),
                              .dtype = key.out_dtype,
                              .x = pointers.out,
                              .x_stride = key.out_stride,
                              .out = pointers.gated,
                              .out_stride = key.gated_stride,
                              .num_rows = static_cast<int>(key.num_rows),
                              .size = static_cast<int>(key.out_features / 2)},
                             stream);
  }

  absl::StatusOr<Entry> MakeEntry(const LinearKey& key, const LinearPointers& pointers,
                                  cudaStream_t stream) {
    REPRISE_ASSIGN_OR_RETURN(CublasLtPlan plan, CublasLtPlan::Create(key));
    if (options_.deterministic) {
      REPRISE_ASSIGN_OR_RETURN(cublasLtMatmulAlgo_t algorithm, DeterministicAlgorithm(key));
      REPRISE_RETURN_IF_ERROR(
          plan.CheckAlgorithm(handle_.get(), algorithm, options_.workspace_bytes));
      return Entry{.key = key, .plan = std::move(plan), .algorithm = algorithm};
    }
    REPRISE_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(stream));
    const int64_t weight_bytes =
        key.num_products * key.out_features * key.in_features * SizeOf(key.dtype);
    const bool may_time = options_.num_candidates > 1 && weight_bytes >= kMinTimedWeightBytes;
    const bool timed = may_time && timing_ == LinearTiming::kOn && !capturing;
    if (may_time && remembered_.has_value()) {
      Entry entry{.key = key, .plan = std::move(plan), .algorithm = {}};
      if (const std::optional<std::string> text = remembered_->Find(RememberedKey(key))) {
        if (Recall(*text, entry, pointers)) return entry;
      }
      plan = std::move(entry.plan);
    }
    REPRISE_ASSIGN_OR_RETURN(
        std::vector<cublasLtMatmulAlgo_t> candidates,
        plan.Candidates(handle_.get(), options_.workspace_bytes,
                        timed ? options_.num_candidates : 1, SplitSum::kAllowed));
    LinearChoice choice = {.source = capturing && options_.num_candidates > 1
                                         ? LinearChoice::Source::kCaptured
                                         : LinearChoice::Source::kHeuristic,
                           .num_candidates = static_cast<int>(candidates.size())};
    Entry entry{.key = key, .plan = std::move(plan), .algorithm = candidates.front()};
    if (timed) {
      REPRISE_RETURN_IF_ERROR(ChooseByTime(candidates, pointers, stream, entry, choice));
    }
    if (timed && remembered_.has_value() && Remember(entry, choice, pointers)) return entry;
    Note(key, key.num_rows, entry.algorithm, choice);
    return entry;
  }

  // Identifies the device, the libraries and the GEMM for which a choice is made.
  std::string RememberedKey(const LinearKey& key) const {
    return absl::StrCat(device_name_, ", ", ToText(key));
  }

  // Uses a remembered choice. Returns false if `text` is not a choice, or if the choice cannot run
  // this GEMM.
  bool Recall(const std::string& text, Entry& entry, const LinearPointers& pointers) {
    const std::optional<RememberedChoice> found = RememberedChoiceFrom(text);
    if (!found.has_value()) return false;
    const SkinnyLinearArgs args = SkinnyArgsOf(entry.key, pointers);
    if (found->skinny_strip > 0 && !SkinnyLinearServes(args)) return false;
    if (found->tile_form.has_value() && !TileLinearPlanOf(args, *found->tile_form).ok()) {
      return false;
    }
    static_assert(sizeof(entry.algorithm) == sizeof(found->algorithm));
    std::memcpy(&entry.algorithm, found->algorithm.data(), sizeof(entry.algorithm));
    if (!entry.plan.CheckAlgorithm(handle_.get(), entry.algorithm, options_.workspace_bytes).ok()) {
      return false;
    }
    entry.skinny_strip = found->skinny_strip;
    entry.tile_form = found->tile_form;
    Note(entry.key, entry.key.num_rows, entry.algorithm,
         {.source = LinearChoice::Source::kRemembered,
          .skinny_strip = entry.skinny_strip,
          .tile_form = entry.tile_form});
    return true;
  }

  // Adds a choice to the file. Returns true if another process has stored a different choice in the
  // meantime, which this entry then uses.
  bool Remember(Entry& entry, const LinearChoice& choice, const LinearPointers& pointers) {
    RememberedChoice made = {.skinny_strip = choice.skinny_strip, .tile_form = choice.tile_form};
    std::memcpy(made.algorithm.data(), &entry.algorithm, sizeof(entry.algorithm));
    const std::string text = ToText(made);
    const absl::StatusOr<std::string> kept = remembered_->Put(RememberedKey(entry.key), text);
    if (!kept.ok()) {
      LOG_FIRST_N(WARNING, 1) << "choices of GEMM algorithms are not stored: "
                              << kept.status().message();
      return false;
    }
    return *kept != text && Recall(*kept, entry, pointers);
  }

  // Stores the chosen candidate in `entry` and the times in `choice`.
  absl::Status ChooseByTime(const std::vector<cublasLtMatmulAlgo_t>& candidates,
                            const LinearPointers& pointers, cudaStream_t stream, Entry& entry,
                            LinearChoice& choice) {
    // A model's weights do not stay in the L2 cache between steps, so the cache is flushed before
    // each timed run.
    int l2_bytes = 0;
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device_.index()),
                   "cudaDeviceGetAttribute"));
    const at::Tensor flush =
        at::zeros({2 * int64_t{l2_bytes} / 4}, at::TensorOptions(device_).dtype(at::kFloat));
    choice.source = LinearChoice::Source::kTimed;
    std::vector<float> times_us;
    for (const cublasLtMatmulAlgo_t& candidate : candidates) {
      entry.algorithm = candidate;
      // Some proposed algorithms cannot run.
      times_us.push_back(Time(entry, pointers, flush, stream).value_or(kCannotRun));
    }
    const float min_us = *std::min_element(times_us.begin(), times_us.end());
    if (min_us == kCannotRun) {
      return absl::InternalError("none of the algorithms that cuBLASLt proposed could run");
    }
    const auto chosen = std::find_if(times_us.begin(), times_us.end(), [&](float time_us) {
      return time_us <= kCloseToBest * min_us;
    });
    choice.first_us = times_us.front();
    choice.best_us = *chosen;
    entry.algorithm = candidates[chosen - times_us.begin()];
    return SkinnyLinearServes(SkinnyArgsOf(entry.key, pointers))
               ? CompareSkinny(pointers, flush, stream, entry, choice)
               : CompareTiles(pointers, flush, stream, entry, choice);
  }

  // Uses the kernel for up to 8 rows if its time is less than the chosen algorithm's plus
  // kEarlyStartUs.
  absl::Status CompareSkinny(const LinearPointers& pointers, const at::Tensor& flush,
                             cudaStream_t stream, Entry& entry, LinearChoice& choice) {
    choice.num_candidates += kMaxSkinnyStrip;
    float limit_us = choice.best_us + kEarlyStartUs;
    int best = 0;
    for (int strip = 1; strip <= kMaxSkinnyStrip; ++strip) {
      entry.skinny_strip = strip;
      // GPUs with less shared memory per SM cannot run it.
      const float us = Time(entry, pointers, flush, stream).value_or(kCannotRun);
      if (us >= limit_us) continue;
      best = strip;
      limit_us = us;
      choice.best_us = us;
    }
    entry.skinny_strip = best;
    choice.skinny_strip = best;
    return absl::OkStatus();
  }

  // Uses the tile kernel if it supports the shape, and its time is less than the chosen algorithm's
  // plus the time that an early start saves. GEMMs of more than kMaxTileLinearRows rows are
  // considered only with their activation: without it, cuBLASLt was faster in every measured shape.
  absl::Status CompareTiles(const LinearPointers& pointers, const at::Tensor& flush,
                            cudaStream_t stream, Entry& entry, LinearChoice& choice) {
    const bool is_worth = entry.key.num_rows <= kMaxTileLinearRows || entry.key.gate.has_value();
    if (!is_worth || !TileLinearServes(SkinnyArgsOf(entry.key, pointers))) return absl::OkStatus();
    const absl::Span<const TileForm> forms = TileFormsToTry(static_cast<int>(entry.key.num_rows));
    choice.num_candidates += static_cast<int>(forms.size());
    std::vector<float> times_us;
    for (const TileForm& form : forms) {
      entry.tile_form = form;
      // GPUs of another compute capability cannot run it.
      times_us.push_back(Time(entry, pointers, flush, stream).value_or(kCannotRun));
    }
    entry.tile_form.reset();
    const float min_us = *std::min_element(times_us.begin(), times_us.end());
    const float early_us =
        entry.key.num_rows <= kMaxSmallTileRows ? kEarlyStartOfSmallTilesUs : kEarlyStartOfTilesUs;
    if (min_us >= choice.best_us + early_us) return absl::OkStatus();
    const auto chosen = std::find_if(times_us.begin(), times_us.end(), [&](float time_us) {
      return time_us <= kCloseToBestForm * min_us;
    });
    entry.tile_form = forms[chosen - times_us.begin()];
    choice.tile_form = entry.tile_form;
    choice.best_us = *chosen;
    return absl::OkStatus();
  }

  // Returns the shortest time of kTimedRuns runs, in microseconds.
  absl::StatusOr<float> Time(Entry& entry, const LinearPointers& pointers, const at::Tensor& flush,
                             cudaStream_t stream) {
    REPRISE_ASSIGN_OR_RETURN(Event begin, MakeEvent());
    REPRISE_ASSIGN_OR_RETURN(Event end, MakeEvent());
    REPRISE_RETURN_IF_ERROR(Run(entry, pointers, WeightMemory::kKept, stream));  // loads the kernel
    float best_us = 0;
    for (int run = 0; run < kTimedRuns; ++run) {
      // Flushes the L2 cache by reading: lines left by writes would be written back during the
      // timed run.
      at::sum(flush);
      REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(begin.get(), stream), "cudaEventRecord"));
      REPRISE_RETURN_IF_ERROR(Run(entry, pointers, WeightMemory::kKept, stream));
      REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(end.get(), stream), "cudaEventRecord"));
      REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(end.get()), "cudaEventSynchronize"));
      float ms = 0;
      REPRISE_RETURN_IF_ERROR(
          CudaStatus(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime"));
      best_us = run == 0 ? ms * 1000 : std::min(best_us, ms * 1000);
    }
    return best_us;
  }

  // Returns the algorithm of a weight for any number of rows. It is chosen for kDeterministicRows;
  // the number of rows in `key` is ignored.
  absl::StatusOr<cublasLtMatmulAlgo_t> DeterministicAlgorithm(LinearKey key) {
    key.num_rows = kDeterministicRows;
    key.gate = std::nullopt;
    key.gated_stride = 0;
    // Assumes dense rows. Otherwise the algorithm could depend on how a batch is split.
    key.x_stride = key.num_products * key.in_features;
    key.out_stride = key.num_products * key.out_features;
    if (key.num_products > 1) {
      key.x_product_stride = key.in_features;
      key.out_product_stride = key.out_features;
    }
    if (auto found = deterministic_.find(key); found != deterministic_.end()) return found->second;
    REPRISE_ASSIGN_OR_RETURN(CublasLtPlan plan, CublasLtPlan::Create(key));
    REPRISE_ASSIGN_OR_RETURN(
        std::vector<cublasLtMatmulAlgo_t> candidates,
        plan.Candidates(handle_.get(), options_.workspace_bytes, 1, SplitSum::kNever));
    deterministic_.emplace(key, candidates.front());
    Note(key, 0, candidates.front(), {.num_candidates = 1});
    return candidates.front();
  }

  // Completes `choice` and stores it for the report.
  void Note(const LinearKey& key, int64_t num_rows, const cublasLtMatmulAlgo_t& algorithm,
            LinearChoice choice) {
    choice.num_rows = num_rows;
    choice.in_features = key.in_features;
    choice.out_features = key.out_features;
    choice.dtype = key.dtype;
    choice.out_dtype = key.out_dtype;
    choice.is_gated = key.gate.has_value();
    choice.algorithm = ConfigOf<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_ID);
    choice.tile = static_cast<int>(ConfigOf<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID));
    choice.split_k = std::max(1, ConfigOf<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
    choices_.push_back(choice);
  }

  c10::Device device_;
  CublasLtOptions options_;
  Handle handle_;
  at::Tensor workspace_;  // [workspace_bytes] uint8
  absl::flat_hash_map<LinearKey, Entry> entries_;
  absl::flat_hash_map<LinearKey, cublasLtMatmulAlgo_t> deterministic_;
  std::vector<LinearChoice> choices_;
  LinearTiming timing_ = LinearTiming::kOn;
  std::string device_name_;  // device and library, the prefix of remembered keys
  std::optional<ChoiceFile> remembered_;
  at::Tensor part_;  // [bytes] uint8: part of an 8-bit weight in the dtype of x
  std::vector<at::Tensor> former_parts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LinearContext>> MakeCublasLtLinearContext(
    c10::Device device, const CublasLtOptions& options) {
  using Result = absl::StatusOr<std::unique_ptr<LinearContext>>;
  return CatchTorchOr([&]() -> Result {
    // "cuda" is the current device; tensors carry its index.
    if (!device.has_index()) device.set_index(c10::cuda::current_device());
    const c10::cuda::CUDAGuard guard(device);
    at::Tensor workspace =
        at::empty({options.workspace_bytes}, at::TensorOptions(device).dtype(at::kByte));
    cublasLtHandle_t raw = nullptr;
    REPRISE_RETURN_IF_ERROR(FromCublas(cublasLtCreate(&raw), "Create"));
    return std::make_unique<CublasLtLinearContext>(device, options, Handle(raw),
                                                   std::move(workspace));
  });
}

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA
