// How far a kernel's out and lse are from the float64 reference, against how far the same maths in
// the kernel's own precision is.
//
//   AttentionError error = ErrorOf(got, exact, own);   // per fixture
//   EXPECT_LE(error.out, error.out_limit);
//   totals.Add(error);                                 // and over many: totals.OutRatio() <= 2
//
// Pure functions. Thread safety: const data.

#ifndef ATTENTION_TESTING_ATTENTION_ERROR_H_
#define ATTENTION_TESTING_ATTENTION_ERROR_H_

#include <string>
#include <vector>

#include "attention/reference.h"
#include "base/dtype.h"

namespace reprise {

// out [num_tokens, num_q_heads, head_dim_v] and lse [num_tokens, num_q_heads], as the reference has
// them.
struct AttentionValues {
  std::vector<double> out;
  std::vector<double> lse;
};

struct AttentionError {
  // The largest, and what is allowed: twice the largest error of the same maths, and a floor for
  // fixtures so small that this may happen to be exact: a rounding of the largest out, and of the
  // largest logit, for which lse stands.
  double out = 0;
  double out_limit = 0;
  double lse = 0;
  double lse_limit = 0;
  // Sums of squares over what the kernel and the same maths are off by, relative to the largest
  // out.
  double out_squares = 0;
  double own_squares = 0;
  // Empty, or what is wrong in kind: NaN, or out and lse where no key is seen.
  std::string wrong;
};

// How out is stored.
struct OutputRounding {
  DType dtype = DType::kFloat32;
  double scale = 1;  // what is stored is out / scale
  // 0: as above. Else each so many columns have a scale of their own, which makes their largest
  // value that of the dtype.
  int block = 0;

  // What `out` becomes, times its scale. REQUIRES: out.size() is a multiple of `block`.
  std::vector<double> Rounded(const std::vector<float>& out) const;
};

// What the kernel multiplies in.
struct ProductRounding {
  DType dtype = DType::kFloat32;  // of the weights
  // Of q and k where they are rounded on the way, as after a rotary embedding. A single such
  // rounding may go either way, in the kernel and in the same maths.
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

  // Root mean square of the kernel's errors over that of the same maths.
  double OutRatio() const;

 private:
  double out_squares_ = 0;
  double own_squares_ = 0;
};

}  // namespace reprise

#endif  // ATTENTION_TESTING_ATTENTION_ERROR_H_
