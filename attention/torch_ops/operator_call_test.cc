#include "reprise/attention/torch_ops/operator_call.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <vector>

namespace reprise {
namespace {

using ::testing::HasSubstr;

// The arguments that the operators below received.
struct Seen {
  std::optional<at::Tensor> maybe;
  std::vector<at::Tensor> list;
  bool flag = false;
  int64_t count = 0;
  std::optional<std::vector<int64_t>> counts;
  double factor = 0;
  std::optional<double> maybe_factor;
  std::string text;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};
Seen seen;

absl::Status Everything(OperatorCall& call) {
  const at::Tensor x = call.Tensor("x");
  seen.maybe = call.MaybeTensor("maybe");
  seen.list = call.Tensors("list");
  seen.flag = call.Bool("flag");
  seen.count = call.Int("count");
  seen.counts = call.MaybeInts("counts");
  seen.factor = call.Double("factor");
  seen.maybe_factor = call.MaybeDouble("maybe_factor");
  seen.text = call.String("text");
  seen.dtype = call.DType("dtype");
  seen.device = call.Device("device");
  call.Return({x, x});
  return absl::OkStatus();
}

absl::Status Refuses(OperatorCall&) { return absl::InvalidArgumentError("x is not welcome"); }

absl::Status ReadsAnotherName(OperatorCall& call) {
  call.Tensor("y");
  return absl::OkStatus();
}

absl::Status ReturnsTooFew(OperatorCall& call) {
  call.Tensor("x");
  call.Return({});
  return absl::OkStatus();
}

absl::Status Doubles(OperatorCall& call) {
  const at::Tensor x = call.Tensor("x");
  call.Return({x.add(x)});
  return absl::OkStatus();
}

absl::Status TraceDoubles(OperatorCall& call) {
  const at::Tensor x = call.Tensor("x");
  call.Return({at::empty_symint(x.sym_sizes(), x.options())});
  return absl::OkStatus();
}

absl::Status Swaps(OperatorCall&) { return absl::InternalError("not while tracing"); }

TORCH_LIBRARY(operator_call_test, library) {
  DefineOperator(library, "doubles(Tensor x) -> Tensor", Doubles, TraceDoubles);
  DefineOperator(library,
                 "swaps(Tensor[] list, Tensor(a!) x, Tensor(b!) y) -> (Tensor(b!), Tensor(a!))",
                 Swaps);
  DefineOperator(library,
                 "everything(Tensor x, Tensor? maybe, Tensor[] list, *, bool flag=True, "
                 "int count=3, int[]? counts=None, float factor=0.5, float? maybe_factor=None, "
                 "str text=\"NHD\", ScalarType dtype, Device device=\"cuda\") -> (Tensor, Tensor)",
                 Everything);
  DefineOperator(library, "refuses(Tensor x) -> Tensor", Refuses);
  DefineOperator(library, "reads_another_name(Tensor x) -> Tensor", ReadsAnotherName);
  DefineOperator(library, "returns_too_few(Tensor x) -> Tensor", ReturnsTooFew);
}

void Call(const char* name, OperatorCall::Stack& stack) {
  c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("operator_call_test::") + name).c_str(), "")
      .callBoxed(&stack);
}

at::Tensor One() { return at::full({1}, 1.0f); }

TEST(OperatorCallTest, ReadsEveryTypeInTheOrderOfTheSchema) {
  const at::Tensor x = One();
  OperatorCall::Stack stack = {x,
                               c10::IValue(),
                               std::vector<at::Tensor>{x, x},
                               false,
                               7,
                               std::vector<int64_t>{1, 2},
                               2.5,
                               c10::IValue(),
                               "HND",
                               static_cast<int64_t>(at::kHalf),
                               at::Device(at::kCPU)};
  Call("everything", stack);
  EXPECT_FALSE(seen.maybe);
  EXPECT_EQ(seen.list.size(), 2u);
  EXPECT_FALSE(seen.flag);
  EXPECT_EQ(seen.count, 7);
  EXPECT_EQ(seen.counts, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(seen.factor, 2.5);
  EXPECT_FALSE(seen.maybe_factor);
  EXPECT_EQ(seen.text, "HND");
  EXPECT_EQ(seen.dtype, at::kHalf);
  EXPECT_EQ(seen.device, at::Device(at::kCPU));
  ASSERT_EQ(stack.size(), 2u) << "the results must replace the arguments";
  EXPECT_TRUE(stack[0].toTensor().is_same(x));
}

TEST(OperatorCallTest, ErrorBecomesAnExceptionWithTheSameText) {
  OperatorCall::Stack stack = {One()};
  try {
    Call("refuses", stack);
    FAIL() << "nothing was thrown";
  } catch (const c10::ValueError& e) {
    EXPECT_THAT(e.what(), HasSubstr("x is not welcome"));
  }
}

at::Tensor WithoutMemory() { return at::empty({2, 3}, at::TensorOptions(at::kMeta)); }

TEST(OperatorCallTest, TraceReturnsShapesWithoutRunningTheOperator) {
  OperatorCall::Stack stack = {WithoutMemory()};
  Call("doubles", stack);
  ASSERT_EQ(stack.size(), 1u);
  EXPECT_TRUE(stack[0].toTensor().is_meta());
  EXPECT_EQ(stack[0].toTensor().sizes(), (std::vector<int64_t>{2, 3}));
}

TEST(OperatorCallTest, TraceReturnsAliasedArguments) {
  const at::Tensor x = WithoutMemory();
  const at::Tensor y = WithoutMemory();
  OperatorCall::Stack stack = {std::vector<at::Tensor>{x}, x, y};
  Call("swaps", stack);
  ASSERT_EQ(stack.size(), 2u);
  EXPECT_TRUE(stack[0].toTensor().is_same(y));
  EXPECT_TRUE(stack[1].toTensor().is_same(x));
}

TEST(OperatorCallTest, TraceRejectsTensorsWithMemory) {
  for (const bool in_list : {true, false}) {
    const at::Tensor x = WithoutMemory();
    OperatorCall::Stack stack = {std::vector<at::Tensor>{in_list ? One() : x}, x,
                                 in_list ? x : One()};
    try {
      Call("swaps", stack);
      FAIL() << "nothing was thrown";
    } catch (const c10::ValueError& e) {
      EXPECT_THAT(e.what(), HasSubstr(in_list ? "list has the wrong device: expected meta, got cpu"
                                              : "y has the wrong device: expected meta, got cpu"));
    }
  }
}

TEST(OperatorCallDeathTest, DiesIfTheFunctionDoesNotMatchTheSchema) {
  OperatorCall::Stack stack = {One()};
  EXPECT_DEATH(Call("reads_another_name", stack), "reads_another_name");
  EXPECT_DEATH(Call("returns_too_few", stack), "results of");
}

}  // namespace
}  // namespace reprise
