// The error of a kernel's out and lse against the float64 reference, compared with the error of the
// same arithmetic in the kernel's precision.
//
//   AttentionError error = ErrorOf(got, exact, own);   // per fixture
//   EXPECT_LE(error.out, error.out_limit);
//   totals.Add(error);                                 // over many: totals.OutRatio() <= 2
//
// Thread safety: pure functions; const data.

#ifndef REPRISE_ATTENTION_TESTING_ATTENTION_ERROR_H_
#define REPRISE_ATTENTION_TESTING_ATTENTION_ERROR_H_

#include <string>
#include <vector>

#include "reprise/attention/reference/reference.h"
#include "reprise/base/dtype.h"

namespace reprise {

// out [num_tokens, num_q_heads, head_dim_v] and lse [num_tokens, num_q_heads], like the reference.
struct AttentionValues {
  std::vector<double> out;
  std::vector<double> lse;
};

struct AttentionError {
  // The largest error and its limit. The limit is twice the largest error of the same arithmetic,
  // plus a floor, because that error may be 0 in small fixtures. The floor is a few roundings of
  // the largest out, or for lse of the largest lse, at least 1. Not set if `wrong` is not empty.
  double out = 0;
  double out_limit = 0;
  double lse = 0;
  double lse_limit = 0;
  // Sums of squared errors of the kernel and of the same arithmetic, relative to the largest out.
  double out_squares = 0;
  double own_squares = 0;
  // Empty, or an error that is not caused by rounding: NaN, or a wrong out or lse for a query that
  // sees no key.
  std::string wrong;
};

// The form in which out is stored.
struct OutputRounding {
  DType dtype = DType::kFloat32;
  double scale = 1;  // the stored value is out / scale
  // Number of columns that share a scale, which maps their largest value to the dtype's largest
  // value. 0: `scale` applies to all columns.
  int block = 0;

  // Returns `out` after storing, times its scale. REQUIRES: out.size() is a multiple of `block`.
  std::vector<double> Rounded(const std::vector<float>& out) const;
};

// The precision of the kernel's MMAs.
struct ProductRounding {
  DType dtype = DType::kFloat32;  // dtype of the softmax weights
  // dtype of q and k if they are rounded before the MMA, as after a rotary embedding. The kernel
  // may round such a value up where the same arithmetic rounds it down.
  DType operands = DType::kFloat32;
  int head_dim = 64;  // multiplications per logit
};

// Compares `got` with `exact`. `own` is the float32 reference with MMAs in this precision; its out
// is rounded here, as `rounding` describes.
AttentionError ErrorOf(const AttentionValues& got, const ReferenceResult<double>& exact,
                       const ReferenceResult<float>& own, int head_dim_v,
                       const ProductRounding& products, const OutputRounding& rounding);

class ErrorTotals {
 public:
  void Add(const AttentionError& error);

  // Returns the root mean square of the kernel's errors, divided by that of the same arithmetic; 0
  // if the latter is 0.
  double OutRatio() const;

 private:
  double out_squares_ = 0;
  double own_squares_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_ATTENTION_ERROR_H_
