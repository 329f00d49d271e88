// Checks tensor arguments by named dimensions. Error messages contain the expected and actual
// shapes.
//
//   ShapeChecker dims;
//   dims.Bind("num_kv_heads", kv.num_kv_heads);
//   // Binds num_tokens:
//   REPRISE_RETURN_IF_ERROR(dims.Check("slot_mapping", slots, {"num_tokens"}, at::kLong));
//   REPRISE_RETURN_IF_ERROR(dims.Check("k", k, {AtLeast("num_tokens"), "num_kv_heads", 128}));
//   REPRISE_RETURN_IF_ERROR(CheckDevice("slot_mapping", slots, k.device()));
//   const int64_t num_tokens = dims.size("num_tokens");
//
//   "slot_mapping must be [num_tokens] int64: expected [17], got [16]"
//   "k must be [>= num_tokens, num_kv_heads, 128]: expected [>= 17, 8, 128], got [16, 8, 128]"
//   "slot_mapping has the wrong device: expected cuda:0, got cpu"
//
// Bind() or the first tensor with a name binds the name; the bound size then applies to all later
// checks. A failed Check() binds nothing.
//
// Errors are InvalidArgument. Thread safety: not thread-safe. Cost: does not allocate or
// synchronise unless a check fails.

#ifndef REPRISE_BASE_SHAPE_CHECK_H_
#define REPRISE_BASE_SHAPE_CHECK_H_

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "absl/status/status.h"

namespace reprise {

// The expected size of a dimension: a name, a number, or AtLeast() of either.
struct Dim {
  Dim(const char* name) : name(name) {}  // NOLINT: implicit, for use in braces
  template <std::integral Int>
  Dim(Int size) : size(size) {}  // NOLINT

  std::string_view name;  // empty: use `size`. Must outlive the checker, like a literal
  int64_t size = 0;
  enum class Rule { kEqual, kAtLeast } rule = Rule::kEqual;
};

// A dimension of at least `dim`. Does not bind a name.
Dim AtLeast(Dim dim);

class ShapeChecker {
 public:
  // Maximum number of names per checker.
  static constexpr int kMaxNames = 16;

  // Sets the size of `name`. REQUIRES: `name` is not bound to another size, and outlives the
  // checker.
  void Bind(std::string_view name, int64_t size);

  // Returns the size bound to `name`. REQUIRES: `name` is bound.
  int64_t size(std::string_view name) const;

  // Checks that `tensor`, the argument named `argument`, is defined and has these dimensions and,
  // if given, this dtype. REQUIRES: names inside AtLeast() are bound.
  absl::Status Check(std::string_view argument, const at::Tensor& tensor,
                     std::initializer_list<Dim> dims,
                     std::optional<at::ScalarType> dtype = std::nullopt);

 private:
  struct Binding {
    std::string_view name;
    int64_t size;
  };

  std::optional<int64_t> Find(std::string_view name) const;

  std::array<Binding, kMaxNames> bindings_;
  int num_bindings_ = 0;
};

// Message: "k has the wrong dtype: expected float16 or bfloat16, got float32". REQUIRES: `tensor`
// is defined.
absl::Status CheckDType(std::string_view argument, const at::Tensor& tensor,
                        std::initializer_list<at::ScalarType> allowed);

// Message: "k has the wrong device: expected cuda:0, got cpu". REQUIRES: `tensor` is defined.
absl::Status CheckDevice(std::string_view argument, const at::Tensor& tensor, at::Device expected);

// Message: "q must have stride 1 in its last dimension: expected 1, got 2". If the last dimension
// has size 0 or 1, accepts any stride. REQUIRES: `tensor` is defined and has a dimension.
absl::Status CheckLastStrideIsOne(std::string_view argument, const at::Tensor& tensor);

}  // namespace reprise

#endif  // REPRISE_BASE_SHAPE_CHECK_H_
