#include "reprise/base/shape_check.h"

#include <c10/core/ScalarType.h>
#include <glog/logging.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace reprise {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

std::string TypeName(at::ScalarType type) { return c10::getDtypeNames(type).first; }

std::string_view RulePrefix(const Dim& dim) { return dim.rule == Dim::Rule::kAtLeast ? ">= " : ""; }

// Returns the required shape by names: "[num_tokens, 8]".
std::string NamedShape(std::initializer_list<Dim> dims) {
  return absl::StrCat("[",
                      absl::StrJoin(dims, ", ",
                                    [](std::string* out, const Dim& dim) {
                                      absl::StrAppend(out, View(RulePrefix(dim)));
                                      dim.name.empty() ? absl::StrAppend(out, dim.size)
                                                       : absl::StrAppend(out, View(dim.name));
                                    }),
                      "]");
}

std::string ShapeOf(const at::Tensor& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.sizes(), ", "), "]");
}

}  // namespace

Dim AtLeast(Dim dim) {
  dim.rule = Dim::Rule::kAtLeast;
  return dim;
}

void ShapeChecker::Bind(std::string_view name, int64_t size) {
  if (std::optional<int64_t> bound = Find(name); bound.has_value()) {
    CHECK_EQ(*bound, size) << "dimension " << name << " is bound already";
    return;
  }
  CHECK_LT(num_bindings_, kMaxNames) << "no room for dimension " << name;
  bindings_[num_bindings_++] = {name, size};
}

int64_t ShapeChecker::size(std::string_view name) const {
  std::optional<int64_t> bound = Find(name);
  CHECK(bound.has_value()) << "dimension " << name << " is not bound";
  return *bound;
}

std::optional<int64_t> ShapeChecker::Find(std::string_view name) const {
  for (int i = 0; i < num_bindings_; ++i) {
    if (bindings_[i].name == name) return bindings_[i].size;
  }
  return std::nullopt;
}

absl::Status ShapeChecker::Check(std::string_view argument, const at::Tensor& tensor,
                                 std::initializer_list<Dim> dims,
                                 std::optional<at::ScalarType> dtype) {
  const auto must_be = [&] {
    return absl::StrCat(View(argument), " must be ", NamedShape(dims),
                        dtype.has_value() ? absl::StrCat(" ", TypeName(*dtype)) : "");
  };
  if (!tensor.defined()) {
    return absl::InvalidArgumentError(
        absl::StrCat(must_be(), ": expected a tensor, got an undefined one"));
  }

  const int num_bindings_before = num_bindings_;
  bool matches = tensor.dim() == static_cast<int64_t>(dims.size());
  int axis = 0;
  for (auto dim = dims.begin(); matches && dim != dims.end(); ++dim, ++axis) {
    const int64_t got = tensor.sizes()[axis];
    std::optional<int64_t> expected = dim->name.empty() ? dim->size : Find(dim->name);
    if (!expected.has_value()) {
      CHECK(dim->rule == Dim::Rule::kEqual) << "AtLeast(" << dim->name << ") requires a bound name";
      Bind(dim->name, got);
    } else if (dim->rule == Dim::Rule::kAtLeast) {
      matches = got >= *expected;
    } else {
      matches = got == *expected;
    }
  }
  if (!matches) {
    num_bindings_ = num_bindings_before;
    const std::string expected =
        absl::StrJoin(dims, ", ", [this](std::string* out, const Dim& dim) {
          std::optional<int64_t> size = dim.name.empty() ? dim.size : Find(dim.name);
          absl::StrAppend(out, View(RulePrefix(dim)));
          size.has_value() ? absl::StrAppend(out, *size) : absl::StrAppend(out, View(dim.name));
        });
    return absl::InvalidArgumentError(
        absl::StrCat(must_be(), ": expected [", expected, "], got ", ShapeOf(tensor)));
  }
  if (dtype.has_value() && tensor.scalar_type() != *dtype) {
    num_bindings_ = num_bindings_before;
    return absl::InvalidArgumentError(absl::StrCat(must_be(), ": expected ", TypeName(*dtype),
                                                   ", got ", TypeName(tensor.scalar_type())));
  }
  return absl::OkStatus();
}

absl::Status CheckDType(std::string_view argument, const at::Tensor& tensor,
                        std::initializer_list<at::ScalarType> allowed) {
  for (at::ScalarType type : allowed) {
    if (tensor.scalar_type() == type) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      View(argument), " has the wrong dtype: expected ",
      absl::StrJoin(
          allowed, " or ",
          [](std::string* out, at::ScalarType type) { absl::StrAppend(out, TypeName(type)); }),
      ", got ", TypeName(tensor.scalar_type())));
}

absl::Status CheckDevice(std::string_view argument, const at::Tensor& tensor, at::Device expected) {
  if (tensor.device() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(View(argument), " has the wrong device: expected ",
                                                 expected.str(), ", got ", tensor.device().str()));
}

absl::Status CheckLastStrideIsOne(std::string_view argument, const at::Tensor& tensor) {
  if (tensor.sizes().back() <= 1 || tensor.strides().back() == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(View(argument), " must have stride 1 in its last dimension: expected 1, got ",
                   tensor.strides().back()));
}

}  // namespace reprise
