// The error of a kernel's out and lse against the float64 reference, compared with the error of the
// same arithmetic in the kernel's own precision.
//
//   AttentionError error = ErrorOf(got, exact, own);   // per fixture
//   EXPECT_LE(error.out, error.out_limit);
//   totals.Add(error);                                 // and over many: totals.OutRatio() <= 2
//
// Pure functions. Thread safety: const data.

#ifndef REPRISE_ATTENTION_TESTING_ATTENTION_ERROR_H_
#define REPRISE_ATTENTION_TESTING_ATTENTION_ERROR_H_

#include <string>
#include <vector>

#include "reprise/attention/reference/reference.h"
#include "reprise/base/dtype.h"

namespace reprise {

// out [num_tokens, num_q_heads, head_dim_v] and lse [num_tokens, num_q_heads], as the reference has
// them.
struct AttentionValues {
  std::vector<double> out;
  std::vector<double> lse;
};

struct AttentionError {
  // The largest error and its limit: twice the largest error of the same arithmetic, but at least a
  // floor, because that error may be 0 in small fixtures: a rounding of the largest out and, for
  // lse, of the largest logit.
  double out = 0;
  double out_limit = 0;
  double lse = 0;
  double lse_limit = 0;
  // Sums of squared errors of the kernel and of the same arithmetic, relative to the largest out.
  double out_squares = 0;
  double own_squares = 0;
  // Empty, or a fault that is not a rounding error: NaN, or wrong out and lse where no key is seen.
  std::string wrong;
};

// How out is stored.
struct OutputRounding {
  DType dtype = DType::kFloat32;
  double scale = 1;  // the stored value is out / scale
  // Columns that share a scale, which maps their largest value to that of the dtype. 0: `scale`
  // applies to all.
  int block = 0;

  // `out` after storing, times its scale. REQUIRES: out.size() is a multiple of `block`.
  std::vector<double> Rounded(const std::vector<float>& out) const;
};

// The precision of the kernel's products.
struct ProductRounding {
  DType dtype = DType::kFloat32;  // of the weights
  // Of q and k where they are rounded before the product, as after a rotary embedding. One such
  // rounding may go up in the kernel and down in the same arithmetic.
  DType operands = DType::kFloat32;
  int head_dim = 64;  // products in a logit
};

// `own` is the reference in float32 with products in this precision, of which out is rounded here.
AttentionError ErrorOf(const AttentionValues& got, const ReferenceResult<double>& exact,
                       const ReferenceResult<float>& own, int head_dim_v,
                       const ProductRounding& products, const OutputRounding& rounding);

class ErrorTotals {
 public:
  void Add(const AttentionError& error);

  // Root mean square of the kernel's errors over that of the same arithmetic.
  double OutRatio() const;

 private:
  double out_squares_ = 0;
  double own_squares_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_ATTENTION_ERROR_H_
