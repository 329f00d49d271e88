// The arguments and results of a call of a torch operator, read one after the other in the order of
// its schema.
//
//   void MergeStates(OperatorCall& call) {
//     const std::vector<at::Tensor> outs = call.Tensors("outs");
//     const std::optional<double> scale = call.MaybeDouble("scale");
//     ...
//     call.Return({out, lse});
//   }
//   DefineOperator(library,
//                  "merge_states(Tensor[] outs, *, float? scale=None) -> (Tensor, Tensor)",
//                  [](OperatorCall& call) -> absl::Status { ... });
//
// Operators with thirty arguments stay readable, and a schema is next to the code that reads it. A
// name that is not the schema's next one is a programming error and CHECK-fails at the first call.
//
// All devices share one operator, which checks the device of its tensors itself. Operators have no
// gradients.
//
// Tracing (torch.compile, torch.export, FakeTensorMode) calls an operator with tensors that have
// shapes but no memory. An operator that makes tensors has a separate function for these calls,
// which makes tensors of the same shape by sym_size() and reads nothing else. An operator that
// returns its caller's tensors, or none, needs no such function.
//
// Thread safety: an OperatorCall is used by one call. Operators may run on several threads where
// their functions may.

#ifndef REPRISE_ATTENTION_TORCH_OPS_OPERATOR_CALL_H_
#define REPRISE_ATTENTION_TORCH_OPS_OPERATOR_CALL_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace torch {
class Library;
}  // namespace torch

namespace reprise {

class OperatorCall {
 public:
  using Stack = std::vector<c10::IValue>;

  // REQUIRES: `stack` ends with the arguments of `schema`. Both outlive the call.
  OperatorCall(const c10::FunctionSchema& schema, Stack& stack);

  // REQUIRES, for all: `name` is the schema's next argument, of this type.
  at::Tensor Tensor(const char* name);
  std::optional<at::Tensor> MaybeTensor(const char* name);
  std::vector<at::Tensor> Tensors(const char* name);
  bool Bool(const char* name);
  int64_t Int(const char* name);
  std::optional<int64_t> MaybeInt(const char* name);
  std::optional<std::vector<int64_t>> MaybeInts(const char* name);
  double Double(const char* name);
  std::optional<double> MaybeDouble(const char* name);
  at::ScalarType DType(const char* name);
  std::optional<at::ScalarType> MaybeDType(const char* name);
  at::Device Device(const char* name);
  std::string String(const char* name);
  std::optional<std::string> MaybeString(const char* name);

  // Reads all remaining arguments, and returns those that the schema's returns are aliases of.
  // REQUIRES: every return is an alias. Return() must not be called after it.
  void ReturnAliases();

  // Replaces the arguments with the results. REQUIRES: all arguments were read; called once.
  void Return(std::initializer_list<at::Tensor> results);

 private:
  // The next argument, which must be called `name`.
  const c10::IValue& Next(const char* name);
  // Like Next(), but null if the argument is None.
  const c10::IValue* MaybeNext(const char* name);

  const c10::FunctionSchema& schema_;
  Stack& stack_;
  size_t next_ = 0;
};

// Adds an operator to `library`. An error that `run` returns becomes an exception
// (attention/torch_ops/throw_status.h); exceptions of LibTorch pass through. `trace` replaces `run`
// while tracing. If it is null, tracing returns the arguments that the schema's returns are aliases
// of.
void DefineOperator(torch::Library& library, const char* schema,
                    absl::Status (*run)(OperatorCall& call),
                    absl::Status (*trace)(OperatorCall& call) = nullptr);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TORCH_OPS_OPERATOR_CALL_H_
