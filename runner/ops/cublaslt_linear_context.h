// GEMMs on a GPU with cuBLASLt and this project's kernels. Created by MakeLinearContext()
// (runner/ops/linear.h), which defines the contract.

#ifndef REPRISE_RUNNER_OPS_CUBLASLT_LINEAR_CONTEXT_H_
#define REPRISE_RUNNER_OPS_CUBLASLT_LINEAR_CONTEXT_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "reprise/runner/ops/linear_context.h"

namespace reprise {

struct CublasLtOptions {
  int64_t workspace_bytes = 0;
  int num_candidates = 1;  // maximum number of the library's candidates; timed if above 1
  bool deterministic = false;
  std::string choices_file = {};  // empty: no file
};

absl::StatusOr<std::unique_ptr<LinearContext>> MakeCublasLtLinearContext(
    c10::Device device, const CublasLtOptions& options);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_CUBLASLT_LINEAR_CONTEXT_H_
