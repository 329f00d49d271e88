#include "runner/ops/host_linear_context.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>

#include "base/shape_check.h"
#include "base/status_macros.h"
#include "base/torch_status.h"

namespace reprise {
namespace {

class HostLinearContext : public LinearContext {
 public:
  explicit HostLinearContext(HostRows rows) : rows_(rows) {}

  absl::Status Multiply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor* bias,
                        const at::Tensor& out) override {
    REPRISE_RETURN_IF_ERROR(CheckDevice("x", x, at::kCPU));
    return CatchTorch([&]() -> absl::Status {
      at::AutoDispatchBelowADInplaceOrView no_autograd;
      const int64_t rows = weight.dim() - 2;  // the dimension
      if (rows_ == HostRows::kTogether) {
        MultiplyRows(x, weight, bias, out);
        return absl::OkStatus();
      }
      for (int64_t row = 0; row < x.size(rows); ++row) {
        MultiplyRows(x.narrow(rows, row, 1), weight, bias, out.narrow(rows, row, 1));
      }
      return absl::OkStatus();
    });
  }

  void SetTiming(LinearTiming) override {}  // there is nothing to choose
  std::vector<LinearChoice> Choices() const override { return {}; }

 private:
  static void MultiplyRows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor* bias,
                           at::Tensor out) {
    if (weight.dim() == 3) {
      out.copy_(at::bmm(x, weight.transpose(1, 2)));
    } else if (out.scalar_type() != x.scalar_type()) {
      // LibTorch has no product of 16-bit matrices with a float32 result on the CPU.
      out.copy_(at::mm(x, weight.t()));
    } else if (bias != nullptr) {
      at::addmm_out(out, *bias, x, weight.t());
    } else {
      at::mm_out(out, x, weight.t());
    }
  }

  HostRows rows_;
};

}  // namespace

std::unique_ptr<LinearContext> MakeHostLinearContext(HostRows rows) {
  return std::make_unique<HostLinearContext>(rows);
}

}  // namespace reprise
