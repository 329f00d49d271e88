// Empty in builds without CUDA.
#ifdef REPRISE_WITH_CUDA

#include "reprise/runner/ops/cublaslt_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// Number of proposals requested from the library; Candidates() filters them afterwards.
constexpr int kMaxProposals = 32;

cudaDataType_t ToCuda(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return CUDA_R_16F;
    case DType::kBFloat16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

absl::Status NoAlgorithm(const LinearKey& key) {
  return absl::UnimplementedError(
      absl::StrCat("cuBLASLt has no algorithm for ", key.num_products, " x ", key.num_rows,
                   " rows, ", key.in_features, " -> ", key.out_features, ", strides ", key.x_stride,
                   ", ", key.weight_stride, ", ", key.out_stride, ", alignments of ",
                   key.x_alignment, ", ", key.weight_alignment, ", ", key.out_alignment, " bytes"));
}

int SplitOf(const cublasLtMatmulAlgo_t& algorithm) {
  int32_t split = 1;
  cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                       sizeof(split), nullptr);
  return std::max(split, 1);
}

struct DestroyPreference {
  void operator()(cublasLtMatmulPreference_t preference) const {
    cublasLtMatmulPreferenceDestroy(preference);
  }
};
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, DestroyPreference>;

absl::StatusOr<Preference> MakePreference(const LinearKey& key, int64_t workspace_bytes,
                                          SplitSum split_sum) {
  cublasLtMatmulPreference_t raw = nullptr;
  REPRISE_RETURN_IF_ERROR(FromCublas(cublasLtMatmulPreferenceCreate(&raw), "PreferenceCreate"));
  Preference preference(raw);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return FromCublas(
        cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
        "PreferenceSetAttribute");
  };
  REPRISE_RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes)));
  const uint32_t schemes = split_sum == SplitSum::kNever ? CUBLASLT_REDUCTION_SCHEME_NONE
                                                         : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes));
  const auto bytes = [](int alignment) { return static_cast<uint32_t>(alignment); };
  REPRISE_RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes(key.weight_alignment)));
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, bytes(key.x_alignment)));
  REPRISE_RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes(key.out_alignment)));
  REPRISE_RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, bytes(key.out_alignment)));
  return preference;
}

}  // namespace

std::string ToText(const LinearKey& key) {
  return absl::StrCat(
      key.num_products, " x rows ", key.num_rows, ", ", key.in_features, " -> ", key.out_features,
      ", strides ", key.x_stride, " ", key.weight_stride, " ", key.out_stride, " ",
      key.x_product_stride, " ", key.weight_product_stride, " ", key.out_product_stride,
      ", alignments ", key.x_alignment, " ", key.weight_alignment, " ", key.out_alignment, ", ",
      std::string(DTypeName(key.dtype)), " -> ", std::string(DTypeName(key.out_dtype)),
      key.has_bias ? ", bias" : "",
      key.gate.has_value()
          ? absl::StrCat(", gate ", static_cast<int>(*key.gate), " stride ", key.gated_stride)
          : "");
}

absl::Status FromCublas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("cuBLASLt ", what, " failed: ", cublasLtGetStatusName(status)));
}

absl::StatusOr<CublasLtPlan::Layout> CublasLtPlan::MakeLayout(DType dtype, const Matrix& matrix,
                                                              int64_t num_products) {
  cublasLtMatrixLayout_t raw = nullptr;
  REPRISE_RETURN_IF_ERROR(FromCublas(
      cublasLtMatrixLayoutCreate(&raw, ToCuda(dtype), static_cast<uint64_t>(matrix.rows),
                                 static_cast<uint64_t>(matrix.columns), matrix.leading_dimension),
      "MatrixLayoutCreate"));
  Layout layout(raw);
  if (num_products == 1) return layout;
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, auto value) {
    return FromCublas(
        cublasLtMatrixLayoutSetAttribute(layout.get(), attribute, &value, sizeof(value)),
        "MatrixLayoutSetAttribute");
  };
  REPRISE_RETURN_IF_ERROR(
      set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(num_products)));
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, matrix.product_stride));
  return layout;
}

absl::StatusOr<CublasLtPlan> CublasLtPlan::Create(const LinearKey& key) {
  CublasLtPlan plan;
  plan.key_ = key;
  cublasLtMatmulDesc_t raw = nullptr;
  // TF32 is off; enabling it would require another compute type.
  REPRISE_RETURN_IF_ERROR(FromCublas(cublasLtMatmulDescCreate(&raw, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                                     "MatmulDescCreate"));
  plan.desc_.reset(raw);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    return FromCublas(
        cublasLtMatmulDescSetAttribute(plan.desc_.get(), attribute, &value, sizeof(value)),
        "MatmulDescSetAttribute");
  };
  REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
  if (key.has_bias) {
    REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
    REPRISE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, ToCuda(key.dtype)));
  }
  const auto layout = [&](DType dtype, const Matrix& matrix) {
    return MakeLayout(dtype, matrix, key.num_products);
  };
  REPRISE_ASSIGN_OR_RETURN(plan.weight_,
                           layout(key.dtype, {key.in_features, key.out_features, key.weight_stride,
                                              key.weight_product_stride}));
  REPRISE_ASSIGN_OR_RETURN(plan.x_, layout(key.dtype, {key.in_features, key.num_rows, key.x_stride,
                                                       key.x_product_stride}));
  REPRISE_ASSIGN_OR_RETURN(
      plan.out_, layout(key.out_dtype,
                        {key.out_features, key.num_rows, key.out_stride, key.out_product_stride}));
  return plan;
}

absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> CublasLtPlan::Candidates(
    cublasLtHandle_t handle, int64_t workspace_bytes, int max_candidates,
    SplitSum split_sum) const {
  REPRISE_ASSIGN_OR_RETURN(Preference preference, MakePreference(key_, workspace_bytes, split_sum));
  std::vector<cublasLtMatmulHeuristicResult_t> proposals(kMaxProposals);
  int num_proposals = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, desc_.get(), weight_.get(), x_.get(), out_.get(), out_.get(), preference.get(),
      kMaxProposals, proposals.data(), &num_proposals);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return NoAlgorithm(key_);
  REPRISE_RETURN_IF_ERROR(FromCublas(status, "MatmulAlgoGetHeuristic"));

  std::vector<cublasLtMatmulAlgo_t> candidates;
  for (int i = 0; i < num_proposals && static_cast<int>(candidates.size()) < max_candidates; ++i) {
    if (proposals[i].state != CUBLAS_STATUS_SUCCESS) continue;
    if (split_sum == SplitSum::kNever && SplitOf(proposals[i].algo) != 1) continue;
    candidates.push_back(proposals[i].algo);
  }
  if (candidates.empty()) return NoAlgorithm(key_);
  return candidates;
}

absl::Status CublasLtPlan::CheckAlgorithm(cublasLtHandle_t handle,
                                          const cublasLtMatmulAlgo_t& algorithm,
                                          int64_t workspace_bytes) const {
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(
      handle, desc_.get(), weight_.get(), x_.get(), out_.get(), out_.get(), &algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > static_cast<size_t>(workspace_bytes)) {
    return NoAlgorithm(key_);
  }
  return absl::OkStatus();
}

absl::Status CublasLtPlan::Run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                               const LinearPointers& pointers, const LinearWorkspace& workspace,
                               cudaStream_t stream) {
  if (key_.has_bias) {
    REPRISE_RETURN_IF_ERROR(
        FromCublas(cublasLtMatmulDescSetAttribute(desc_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                  &pointers.bias, sizeof(pointers.bias)),
                   "MatmulDescSetAttribute"));
  }
  const float one = 1.0f;
  const float zero = 0.0f;
  return FromCublas(
      cublasLtMatmul(handle, desc_.get(), &one, pointers.weight, weight_.get(), pointers.x,
                     x_.get(), &zero, pointers.out, out_.get(), pointers.out, out_.get(),
                     &algorithm, workspace.data, static_cast<size_t>(workspace.bytes), stream),
      "Matmul");
}

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA
