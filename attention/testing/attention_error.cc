#include "reprise/attention/testing/attention_error.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "absl/strings/str_cat.h"
#include "reprise/base/element_access.h"

namespace reprise {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Returns half a unit in the last place of 1.
double RoundingOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return 0x1p-11;
    case DType::kBFloat16:
      return 0x1p-8;
    case DType::kFp8E4M3:
      return 0x1p-4;
    case DType::kFp8E5M2:
      return 0x1p-3;
    default:
      return 0x1p-24;
  }
}

std::string WrongInKind(const AttentionValues& got, const ReferenceResult<double>& exact,
                        int head_dim_v) {
  for (size_t i = 0; i < exact.lse.size(); ++i) {
    const bool sees_none = exact.lse[i] == -kInf;
    if (std::isnan(got.lse[i]) || (got.lse[i] == -kInf) != sees_none) {
      return absl::StrCat("lse ", i, " is ", got.lse[i], ", not ", exact.lse[i]);
    }
    for (int d = 0; d < head_dim_v; ++d) {
      const double out = got.out[i * head_dim_v + d];
      if (!std::isfinite(out) || (sees_none && out != 0)) {
        return absl::StrCat("out ", i, " dim ", d, " is ", out, ", not ",
                            exact.out[i * head_dim_v + d]);
      }
    }
  }
  return "";
}

}  // namespace

std::vector<double> OutputRounding::Rounded(const std::vector<float>& out) const {
  std::vector<double> rounded(out.size());
  const size_t step = block > 0 ? block : 1;
  for (size_t begin = 0; begin < out.size(); begin += step) {
    double own_scale = scale;
    if (block > 0) {
      double largest = 1e-10;
      for (size_t i = begin; i < begin + step; ++i) {
        largest = std::max(largest, std::abs(static_cast<double>(out[i])));
      }
      own_scale = largest / (dtype == DType::kFp8E5M2 ? 57344.0 : 448.0);
    }
    for (size_t i = begin; i < begin + step; ++i) {
      rounded[i] = RoundTo(dtype, out[i] / own_scale) * own_scale;
    }
  }
  return rounded;
}

AttentionError ErrorOf(const AttentionValues& got, const ReferenceResult<double>& exact,
                       const ReferenceResult<float>& own, int head_dim_v,
                       const ProductRounding& products, const OutputRounding& rounding) {
  AttentionError error;
  error.wrong = WrongInKind(got, exact, head_dim_v);
  if (!error.wrong.empty()) return error;

  double own_lse = 0;
  double largest_lse = 1;
  for (size_t i = 0; i < exact.lse.size(); ++i) {
    if (exact.lse[i] == -kInf) continue;
    error.lse = std::max(error.lse, std::abs(got.lse[i] - exact.lse[i]));
    own_lse = std::max(own_lse, std::abs(own.lse[i] - exact.lse[i]));
    largest_lse = std::max(largest_lse, std::abs(exact.lse[i]));
  }
  // Tensor cores truncate their sums once per 16 multiplications. Scale, softcap, bias, the
  // rescaling of sums and the logarithm round once each.
  double logit_floor = (5 + products.head_dim / 16) * 0x1p-23 * largest_lse;
  if (products.operands != DType::kFloat32)
    logit_floor += RoundingOf(products.operands) * largest_lse;
  error.lse_limit = 2 * own_lse + logit_floor;

  double own_out = 0;
  double largest_out = 0;
  for (double out : exact.out) largest_out = std::max(largest_out, std::abs(out));
  if (largest_out == 0) largest_out = 1;
  const std::vector<double> own_rounded = rounding.Rounded(own.out);
  for (size_t i = 0; i < exact.out.size(); ++i) {
    const double got_error = std::abs(got.out[i] - exact.out[i]);
    const double own_error = std::abs(own_rounded[i] - exact.out[i]);
    error.out = std::max(error.out, got_error);
    own_out = std::max(own_out, own_error);
    error.out_squares += got_error * got_error / (largest_out * largest_out);
    error.own_squares += own_error * own_error / (largest_out * largest_out);
  }
  const double roundings = RoundingOf(products.dtype) + RoundingOf(rounding.dtype);
  error.out_limit = 2 * own_out + (roundings + logit_floor) * largest_out;
  return error;
}

void ErrorTotals::Add(const AttentionError& error) {
  out_squares_ += error.out_squares;
  own_squares_ += error.own_squares;
}

double ErrorTotals::OutRatio() const {
  return own_squares_ > 0 ? std::sqrt(out_squares_ / own_squares_) : 0;
}

}  // namespace reprise
