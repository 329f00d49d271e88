// Reads the arguments of a call of a torch operator, one after another in the order of the schema,
// and returns its results.
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
// Operators with thirty arguments stay readable, and a schema is next to the code that reads it. If
// a name is not the schema's next argument, the first call CHECK-fails.
//
// Each operator has one implementation for all devices, which checks the device of its tensors.
// Operators have no gradients.
//
// Tracing (torch.compile, torch.export, FakeTensorMode) calls an operator with tensors that have
// shapes but no memory. An operator that allocates tensors needs a separate function for such
// calls. That function allocates tensors of the same shape with sym_size() and reads no data. An
// operator that returns only tensors of its caller, or no tensors, does not need such a function.
//
// Thread safety: an OperatorCall belongs to one call. Operators may run on several threads if the
// functions that they call may.

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

  // REQUIRES: `stack` ends with the arguments of `schema`. Both must outlive this object.
  OperatorCall(const c10::FunctionSchema& schema, Stack& stack);

  // Return the next argument. REQUIRES: `name` is the name of the schema's next argument, which has
  // this type.
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

  // Reads all remaining arguments, and returns the arguments that the schema's returns alias. Do
  // not call Return() afterwards. REQUIRES: every return is an alias.
  void ReturnAliases();

  // Replaces the arguments with the results. REQUIRES: all arguments have been read; called once.
  void Return(std::initializer_list<at::Tensor> results);

 private:
  // Returns the next argument. CHECK-fails if its name is not `name`.
  const c10::IValue& Next(const char* name);
  // Like Next(), but returns null if the argument is None.
  const c10::IValue* MaybeNext(const char* name);

  const c10::FunctionSchema& schema_;
  Stack& stack_;
  size_t next_ = 0;
};

// Adds an operator to `library`. An error that `run` returns becomes an exception
// (attention/torch_ops/throw_status.h); LibTorch's exceptions pass through. `trace` replaces `run`
// while tracing. If `trace` is null, tracing returns the arguments that the schema's returns alias.
void DefineOperator(torch::Library& library, const char* schema,
                    absl::Status (*run)(OperatorCall& call),
                    absl::Status (*trace)(OperatorCall& call) = nullptr);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TORCH_OPS_OPERATOR_CALL_H_
