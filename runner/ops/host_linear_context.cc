#include "runner/ops/host_linear_context.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "base/shape_check.h"
#include "base/status_macros.h"
#include "base/torch_status.h"

namespace reprise {
namespace {

class HostLinearContext : public LinearContext {
 public:
  absl::Status Multiply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor* bias,
                        const at::Tensor& out) override {
    REPRISE_RETURN_IF_ERROR(CheckDevice("x", x, at::kCPU));
    return CatchTorch([&]() -> absl::Status {
      at::AutoDispatchBelowADInplaceOrView no_autograd;
      at::Tensor result = out;
      if (out.scalar_type() != x.scalar_type()) {
        // LibTorch has no product of 16-bit matrices with a float32 result on the CPU.
        result.copy_(at::mm(x, weight.t()));
      } else if (bias != nullptr) {
        at::addmm_out(result, *bias, x, weight.t());
      } else {
        at::mm_out(result, x, weight.t());
      }
      return absl::OkStatus();
    });
  }

  void SetTiming(LinearTiming) override {}  // there is nothing to choose
  std::vector<LinearChoice> Choices() const override { return {}; }
};

}  // namespace

std::unique_ptr<LinearContext> MakeHostLinearContext() {
  return std::make_unique<HostLinearContext>();
}

}  // namespace reprise
