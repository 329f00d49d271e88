#include "reprise/attention/torch_ops/operator_call.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <glog/logging.h>
#include <torch/library.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/attention/torch_ops/throw_status.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// An operator in the form that the dispatcher calls. The function is a member and not a template
// argument, so one class serves all operators.
class BoxedOperator : public c10::OperatorKernel {
 public:
  explicit BoxedOperator(absl::Status (*run)(OperatorCall& call)) : run_(run) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                  OperatorCall::Stack* stack) const {
    OperatorCall call(op.schema(), *stack);
    ThrowIfError(run_(call));
  }

 private:
  absl::Status (*run_)(OperatorCall& call);
};

absl::Status ReturnAliases(OperatorCall& call) {
  call.ReturnAliases();
  return absl::OkStatus();
}

absl::Status CheckIsMeta(const std::string& argument, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(argument, " has the wrong device: expected meta, got ", tensor.device().str()));
}

// Tensors have no memory in a trace. A mix of tensors with and without memory is an error.
absl::Status CheckAreMeta(const c10::FunctionSchema& schema, const OperatorCall::Stack& stack) {
  const size_t num_arguments = schema.arguments().size();
  for (size_t i = 0; i < num_arguments; ++i) {
    const c10::IValue& value = stack[stack.size() - num_arguments + i];
    const std::string& name = schema.arguments()[i].name();
    if (value.isTensor()) REPRISE_RETURN_IF_ERROR(CheckIsMeta(name, value.toTensor()));
    if (!value.isTensorList()) continue;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      REPRISE_RETURN_IF_ERROR(CheckIsMeta(name, tensor));
    }
  }
  return absl::OkStatus();
}

// Like BoxedOperator, for tensors without memory.
class BoxedTrace : public c10::OperatorKernel {
 public:
  explicit BoxedTrace(absl::Status (*run)(OperatorCall& call)) : run_(run) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                  OperatorCall::Stack* stack) const {
    ThrowIfError(CheckAreMeta(op.schema(), *stack));
    OperatorCall call(op.schema(), *stack);
    ThrowIfError(run_(call));
  }

 private:
  absl::Status (*run_)(OperatorCall& call);
};

}  // namespace

OperatorCall::OperatorCall(const c10::FunctionSchema& schema, Stack& stack)
    : schema_(schema), stack_(stack) {
  CHECK_GE(stack.size(), schema.arguments().size());
}

const c10::IValue& OperatorCall::Next(const char* name) {
  const size_t num_arguments = schema_.arguments().size();
  CHECK_LT(next_, num_arguments) << schema_.name() << " has no argument " << name;
  CHECK_EQ(schema_.arguments()[next_].name(), name) << "in " << schema_.name();
  return stack_[stack_.size() - num_arguments + next_++];
}

const c10::IValue* OperatorCall::MaybeNext(const char* name) {
  const c10::IValue& value = Next(name);
  return value.isNone() ? nullptr : &value;
}

at::Tensor OperatorCall::Tensor(const char* name) { return Next(name).toTensor(); }

std::optional<at::Tensor> OperatorCall::MaybeTensor(const char* name) {
  const c10::IValue* value = MaybeNext(name);
  return value ? std::optional(value->toTensor()) : std::nullopt;
}

std::vector<at::Tensor> OperatorCall::Tensors(const char* name) {
  return Next(name).toTensorVector();
}

bool OperatorCall::Bool(const char* name) { return Next(name).toBool(); }

int64_t OperatorCall::Int(const char* name) { return Next(name).toInt(); }

std::optional<int64_t> OperatorCall::MaybeInt(const char* name) {
  const c10::IValue* value = MaybeNext(name);
  return value ? std::optional(value->toInt()) : std::nullopt;
}

std::optional<std::vector<int64_t>> OperatorCall::MaybeInts(const char* name) {
  const c10::IValue* value = MaybeNext(name);
  return value ? std::optional(value->toIntVector()) : std::nullopt;
}

double OperatorCall::Double(const char* name) { return Next(name).toDouble(); }

std::optional<double> OperatorCall::MaybeDouble(const char* name) {
  const c10::IValue* value = MaybeNext(name);
  return value ? std::optional(value->toDouble()) : std::nullopt;
}

at::ScalarType OperatorCall::DType(const char* name) { return Next(name).toScalarType(); }

std::optional<at::ScalarType> OperatorCall::MaybeDType(const char* name) {
  const c10::IValue* value = MaybeNext(name);
  return value ? std::optional(value->toScalarType()) : std::nullopt;
}

at::Device OperatorCall::Device(const char* name) { return Next(name).toDevice(); }

std::string OperatorCall::String(const char* name) { return Next(name).toStringRef(); }

std::optional<std::string> OperatorCall::MaybeString(const char* name) {
  const c10::IValue* value = MaybeNext(name);
  return value ? std::optional(value->toStringRef()) : std::nullopt;
}

void OperatorCall::Return(std::initializer_list<at::Tensor> results) {
  CHECK_EQ(next_, schema_.arguments().size()) << "not all arguments of " << schema_.name();
  CHECK_EQ(results.size(), schema_.returns().size()) << "results of " << schema_.name();
  stack_.resize(stack_.size() - next_);
  for (const at::Tensor& result : results) stack_.emplace_back(result);
}

void OperatorCall::ReturnAliases() {
  const size_t num_arguments = schema_.arguments().size();
  Stack results;
  for (const c10::Argument& result : schema_.returns()) {
    CHECK(result.alias_info() != nullptr)
        << schema_.name() << " makes a tensor: it has to be traced";
    for (size_t i = 0; i < num_arguments; ++i) {
      const c10::AliasInfo* info = schema_.arguments()[i].alias_info();
      if (info == nullptr || info->beforeSets() != result.alias_info()->beforeSets()) continue;
      results.push_back(stack_[stack_.size() - num_arguments + i]);
    }
  }
  CHECK_EQ(results.size(), schema_.returns().size()) << "aliases of " << schema_.name();
  stack_.resize(stack_.size() - num_arguments);
  for (c10::IValue& result : results) stack_.push_back(std::move(result));
}

void DefineOperator(torch::Library& library, const char* schema,
                    absl::Status (*run)(OperatorCall& call),
                    absl::Status (*trace)(OperatorCall& call)) {
  library.def(schema);
  const std::string text(schema);
  const std::string name = text.substr(0, text.find('('));
  library.impl(name.c_str(), c10::DispatchKey::CompositeExplicitAutograd,
               torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedOperator>(run)));
  library.impl(name.c_str(), c10::DispatchKey::Meta,
               torch::CppFunction::makeFromBoxedFunctor(
                   std::make_unique<BoxedTrace>(trace ? trace : ReturnAliases)));
}

}  // namespace reprise
