// The cuBLASLt description of a GEMM of one shape: out = x weight^T + bias for row-major matrices.
//
// cuBLASLt is column-major. A row-major matrix [r, c] is a column-major matrix [c, r] whose leading
// dimension is the row stride. The GEMM is therefore out^T [n, m] = weight [n, k] x^T [k, m]: A is
// the weight, transposed; B is x; D is out. A batch of GEMMs (runner/ops/head_linear.h) uses the
// same layouts and a stride between GEMMs.
//
// Thread safety: none. Move-only. Needs CUDA.

#ifndef REPRISE_RUNNER_OPS_CUBLASLT_PLAN_H_
#define REPRISE_RUNNER_OPS_CUBLASLT_PLAN_H_

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/base/dtype.h"
#include "reprise/runner/ops/op_options.h"

namespace reprise {

// The properties of a GEMM on which the choice of an algorithm depends. GEMMs with equal keys may
// share a plan.
struct LinearKey {
  int64_t num_rows = 0, out_features = 0, in_features = 0;  // m, n, k
  int64_t x_stride = 0, weight_stride = 0, out_stride = 0;  // elements between rows
  DType dtype = DType::kFloat32;                            // x, weight and bias
  DType out_dtype = DType::kFloat32;
  bool has_bias = false;
  // If set, a kernel computes a second array from `out`: the gated result of
  // LinearContext::MultiplyGated(), with gated_stride elements between its rows. A plan ignores
  // both fields.
  std::optional<Activation> gate = std::nullopt;
  int64_t gated_stride = 0;
  // Number of GEMMs in the batch, and elements between consecutive GEMMs.
  int64_t num_products = 1;
  int64_t x_product_stride = 0, weight_product_stride = 0, out_product_stride = 0;
  int x_alignment = 16, weight_alignment = 16, out_alignment = 16;  // bytes: 1, 2, 4, 8 or 16

  friend bool operator==(const LinearKey&, const LinearKey&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const LinearKey& key) {
    return H::combine(std::move(state), key.num_rows, key.out_features, key.in_features,
                      key.x_stride, key.weight_stride, key.out_stride, key.dtype, key.out_dtype,
                      key.has_bias, key.gate, key.gated_stride, key.num_products,
                      key.x_product_stride, key.weight_product_stride, key.out_product_stride,
                      key.x_alignment, key.weight_alignment, key.out_alignment);
  }
};

// Returns all fields of the key as one line of text.
std::string ToText(const LinearKey& key);

// The arrays of one GEMM.
struct LinearPointers {
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;  // null if the key has no bias
  void* out = nullptr;
  void* gated = nullptr;  // null if the key has no gate
};

// Scratch memory of an algorithm.
struct LinearWorkspace {
  void* data = nullptr;
  int64_t bytes = 0;
};

enum class SplitSum { kAllowed, kNever };

class CublasLtPlan {
 public:
  static absl::StatusOr<CublasLtPlan> Create(const LinearKey& key);

  CublasLtPlan(CublasLtPlan&&) = default;
  CublasLtPlan& operator=(CublasLtPlan&&) = default;

  // Returns at most `max_candidates` algorithms that the library proposes for this plan within
  // `workspace_bytes`, in the library's order; some may fail to run. Algorithms that split
  // in_features sum in float32. With kNever, no algorithm splits in_features. Errors: Unimplemented
  // if the library proposes none; Internal if a call of the library fails.
  absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> Candidates(cublasLtHandle_t handle,
                                                               int64_t workspace_bytes,
                                                               int max_candidates,
                                                               SplitSum split_sum) const;

  // Returns Unimplemented unless `algorithm`, which was found for another plan or by another
  // process, can also run this plan within `workspace_bytes`.
  absl::Status CheckAlgorithm(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                              int64_t workspace_bytes) const;

  // Enqueues the GEMM.
  absl::Status Run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                   const LinearPointers& pointers, const LinearWorkspace& workspace,
                   cudaStream_t stream);

 private:
  struct DestroyDesc {
    void operator()(cublasLtMatmulDesc_t desc) const { cublasLtMatmulDescDestroy(desc); }
  };
  struct DestroyLayout {
    void operator()(cublasLtMatrixLayout_t layout) const { cublasLtMatrixLayoutDestroy(layout); }
  };
  using Desc = std::unique_ptr<cublasLtMatmulDescOpaque_t, DestroyDesc>;
  using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, DestroyLayout>;

  CublasLtPlan() = default;

  // One matrix, or the first matrix of `num_products`.
  struct Matrix {
    int64_t rows = 0, columns = 0, leading_dimension = 0, product_stride = 0;
  };
  static absl::StatusOr<Layout> MakeLayout(DType dtype, const Matrix& matrix, int64_t num_products);

  LinearKey key_;
  Desc desc_;
  Layout weight_, x_, out_;
};

// Converts a cuBLAS status: OK, or Internal with the name of the error ("CUBLAS_STATUS_...").
// `what`: the call that failed.
absl::Status FromCublas(cublasStatus_t status, const char* what);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_CUBLASLT_PLAN_H_
