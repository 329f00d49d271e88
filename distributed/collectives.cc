#include "reprise/distributed/collectives.h"

#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <initializer_list>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"

namespace reprise {
namespace {

constexpr std::initializer_list<at::ScalarType> kSummable = {at::kFloat, at::kHalf, at::kBFloat16,
                                                             at::kInt, at::kLong};

absl::Status CheckContiguous(std::string_view argument, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(argument), " is not defined"));
  }
  if (!tensor.is_contiguous()) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(argument), " must be contiguous: got sizes ",
                     c10::str(tensor.sizes()), ", strides ", c10::str(tensor.strides())));
  }
  return absl::OkStatus();
}

absl::Status CheckSummable(const at::Tensor& tensor) {
  REPRISE_RETURN_IF_ERROR(CheckContiguous("tensor", tensor));
  return CheckDType("tensor", tensor, kSummable);
}

// Whether two contiguous tensors share bytes.
bool Overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto* a_data = static_cast<const char*>(a.const_data_ptr());
  const auto* b_data = static_cast<const char*>(b.const_data_ptr());
  return a_data < b_data + b.nbytes() && b_data < a_data + a.nbytes();
}

// Checks that `all` is [world, sizes of `one`] and has the dtype and device of `one`. The names are
// for messages.
absl::Status CheckStacked(int world, std::string_view all_name, const at::Tensor& all,
                          std::string_view one_name, const at::Tensor& one) {
  REPRISE_RETURN_IF_ERROR(CheckContiguous(all_name, all));
  REPRISE_RETURN_IF_ERROR(CheckContiguous(one_name, one));
  if (all.dim() != one.dim() + 1 || all.size(0) != world || all.sizes().slice(1) != one.sizes()) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(all_name), " must be [world, sizes of ", std::string(one_name),
                     "]: expected [", world, one.dim() > 0 ? ", " : "",
                     c10::str(c10::Join(", ", one.sizes())), "], got ", c10::str(all.sizes())));
  }
  REPRISE_RETURN_IF_ERROR(CheckDType(all_name, all, {one.scalar_type()}));
  return CheckDevice(all_name, all, one.device());
}

class OneRankCollectives final : public Collectives {
 public:
  OneRankCollectives() : Collectives(Ranks{}) {}
  std::string Fingerprint() const override { return "one rank"; }
  absl::Status status() const override { return status_; }
  void Fail(const absl::Status& why) override { status_.Update(why); }

 protected:
  absl::Status DoAllReduce(at::Tensor&) override { return absl::OkStatus(); }
  absl::Status DoAllGather(const at::Tensor& in, at::Tensor& out) override {
    if (in.const_data_ptr() != out.const_data_ptr()) out.select(0, 0).copy_(in);
    return absl::OkStatus();
  }
  absl::Status DoReduceScatter(const at::Tensor& in, at::Tensor& out) override {
    out.copy_(in.select(0, 0));
    return absl::OkStatus();
  }
  absl::Status DoBroadcast(at::Tensor&, int) override { return absl::OkStatus(); }
  absl::Status DoBarrier() override { return absl::OkStatus(); }

 private:
  absl::Status status_;
};

}  // namespace

absl::Status Collectives::AllReduce(at::Tensor& tensor) {
  REPRISE_RETURN_IF_ERROR(CheckSummable(tensor));
  REPRISE_RETURN_IF_ERROR(status());
  if (tensor.numel() == 0) return absl::OkStatus();
  return CatchTorch([&] { return DoAllReduce(tensor); });
}

absl::StatusOr<std::optional<PushAllReduceArgs>> Collectives::PushAllReduce(
    const at::Tensor& tensor) {
  REPRISE_RETURN_IF_ERROR(CheckSummable(tensor));
  REPRISE_RETURN_IF_ERROR(status());
  if (tensor.numel() == 0) return std::nullopt;
  return DoPushAllReduce(tensor);
}

std::optional<PushAllReduceArgs> Collectives::DoPushAllReduce(const at::Tensor&) {
  return std::nullopt;
}

absl::Status Collectives::AllGather(const at::Tensor& in, at::Tensor& out) {
  REPRISE_RETURN_IF_ERROR(CheckStacked(ranks_.world, "out", out, "in", in));
  REPRISE_RETURN_IF_ERROR(status());
  if (in.numel() == 0) return absl::OkStatus();
  const auto* own = static_cast<const char*>(out.const_data_ptr()) + ranks_.rank * in.nbytes();
  if (Overlap(in, out) && in.const_data_ptr() != own) {
    return absl::InvalidArgumentError("in overlaps out, and is not out[rank]");
  }
  return CatchTorch([&] { return DoAllGather(in, out); });
}

absl::Status Collectives::ReduceScatter(const at::Tensor& in, at::Tensor& out) {
  REPRISE_RETURN_IF_ERROR(CheckStacked(ranks_.world, "in", in, "out", out));
  REPRISE_RETURN_IF_ERROR(CheckDType("in", in, kSummable));
  REPRISE_RETURN_IF_ERROR(status());
  if (out.numel() == 0) return absl::OkStatus();
  if (Overlap(in, out)) return absl::InvalidArgumentError("in overlaps out");
  return CatchTorch([&] { return DoReduceScatter(in, out); });
}

absl::Status Collectives::Broadcast(at::Tensor& tensor, int root) {
  REPRISE_RETURN_IF_ERROR(CheckContiguous("tensor", tensor));
  if (root < 0 || root >= ranks_.world) {
    return absl::InvalidArgumentError(
        absl::StrCat("root must be a rank: expected [0, ", ranks_.world, "), got ", root));
  }
  REPRISE_RETURN_IF_ERROR(status());
  if (tensor.numel() == 0) return absl::OkStatus();
  return CatchTorch([&] { return DoBroadcast(tensor, root); });
}

absl::Status Collectives::Barrier() {
  REPRISE_RETURN_IF_ERROR(status());
  return CatchTorch([&] { return DoBarrier(); });
}

absl::StatusOr<at::Tensor> Collectives::NewBuffer(at::IntArrayRef sizes, at::ScalarType dtype,
                                                  at::Device device) {
  for (int64_t size : sizes) {
    if (size < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("sizes must not be negative: got ", c10::str(sizes)));
    }
  }
  REPRISE_RETURN_IF_ERROR(status());
  return CatchTorchOr([&] { return DoNewBuffer(sizes, dtype, device); });
}

absl::StatusOr<at::Tensor> Collectives::DoNewBuffer(at::IntArrayRef sizes, at::ScalarType dtype,
                                                    at::Device device) {
  return at::zeros(sizes, at::TensorOptions().dtype(dtype).device(device));
}

std::unique_ptr<Collectives> OneRank() { return std::make_unique<OneRankCollectives>(); }

}  // namespace reprise
