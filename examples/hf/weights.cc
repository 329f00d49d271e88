#include "reprise/hf/weights.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"
#include "reprise/hf/bounded_list.h"
#include "reprise/hf/checkpoint.h"
#include "reprise/hf/checkpoint_reader.h"
#include "reprise/hf/tensor_view.h"

namespace reprise {
namespace {

// The bound of a message about tensors that do not fit, without the folder's name.
constexpr size_t kMaxMessage = 260;

std::string Joined(std::string_view a, std::string_view b, std::string_view c = "") {
  return std::string(a).append(b).append(c);
}

struct Problem {
  const char* what;
  std::vector<std::string> names;
};

// "what: name, name and 3 more", of at most `max_length` characters.
std::string Described(const Problem& problem, size_t max_length) {
  const std::vector<std::string_view> names(problem.names.begin(), problem.names.end());
  const std::string what = absl::StrCat(problem.what, ": ");
  return absl::StrCat(what, BoundedList(names, max_length - what.size()));
}

// OK without problems.
absl::Status StatusOf(std::vector<Problem> problems) {
  std::erase_if(problems, [](const Problem& problem) { return problem.names.empty(); });
  if (problems.empty()) return absl::OkStatus();
  std::string message = "the checkpoint does not fit its config.json: ";
  for (size_t i = 0; i < problems.size(); ++i) {
    if (i > 0) message += "; ";
    message += Described(problems[i], (kMaxMessage - message.size()) / (problems.size() - i));
  }
  return absl::InvalidArgumentError(message);
}

std::vector<int64_t> ShapeOf(int64_t num_rows, const std::vector<int64_t>& row_shape) {
  std::vector<int64_t> shape = {num_rows};
  shape.insert(shape.end(), row_shape.begin(), row_shape.end());
  return shape;
}

std::vector<int64_t> StoredShape(const WeightPart& part, const std::vector<int64_t>& row_shape) {
  return part.stored_shape.empty() ? ShapeOf(part.all_stored_rows(), row_shape) : part.stored_shape;
}

absl::StatusOr<Linear> MakeLinear(ScaledWeight weight, std::optional<at::Tensor> bias) {
  return weight.scales.defined() ? Linear::CreateScaled(std::move(weight.values),
                                                        std::move(weight.scales), std::move(bias))
                                 : Linear::Create(std::move(weight.values), std::move(bias));
}

// Records the requests.
class TensorList : public WeightSource {
 public:
  explicit TensorList(const Ranks& ranks) : WeightSource(DType::kFloat32, ranks) {}

  absl::StatusOr<at::Tensor> Add(const WeightRequest& request) override {
    for (const WeightPart& part : request.parts) {
      const int64_t stored_rows = part.all_stored_rows();
      CHECK(part.first_row >= 0 && part.first_row + part.num_rows <= stored_rows)
          << part.name << ": " << part.num_rows << " rows from " << part.first_row << " on of "
          << stored_rows;
      CHECK(!part.is_transposed || part.num_rows == stored_rows) << part.name;
      List({part.name, StoredShape(part, request.row_shape), request.may_have_scales});
    }
    return at::empty(request.Shape(), at::TensorOptions(at::kMeta));
  }

  std::vector<ExpectedTensor> tensors;

 private:
  void List(ExpectedTensor tensor) {
    const auto [known, is_new] = indices_.emplace(tensor.name, tensors.size());
    if (is_new) {
      tensors.push_back(std::move(tensor));
      return;
    }
    ExpectedTensor& listed = tensors[known->second];
    CHECK(listed.shape == tensor.shape)
        << tensor.name << " is requested as " << ShapeString(listed.shape) << " and as "
        << ShapeString(tensor.shape);
    listed.may_have_scales &= tensor.may_have_scales;
  }

  std::map<std::string, size_t> indices_;  // into tensors
};

class CheckpointSource : public WeightSource {
 public:
  CheckpointSource(std::shared_ptr<const Checkpoint> checkpoint, TensorNaming naming,
                   c10::Device device, DType dtype, const Ranks& ranks)
      : WeightSource(dtype, ranks),
        reader(checkpoint, device, dtype),
        checkpoint_(std::move(checkpoint)),
        naming_(std::move(naming)),
        device_(device) {}

  absl::StatusOr<at::Tensor> Add(const WeightRequest& request) override {
    return reader.Add(PartsOf(request), request.dtype);
  }

  absl::StatusOr<std::optional<ScaledWeight>> AddScaled(const WeightRequest& request) override {
    REPRISE_ASSIGN_OR_RETURN(const TensorView first,
                             checkpoint_->Find(naming_.Published(request.parts[0].name)));
    if (first.type != StoredType::kFp8E4M3) return std::optional<ScaledWeight>();
    REPRISE_ASSIGN_OR_RETURN(at::Tensor values, reader.AddFp8(PartsOf(request)));
    std::vector<ScaledRows> rows;
    for (const WeightPart& part : request.parts) {
      rows.push_back({.name = naming_.Published(part.name),
                      .shape = ShapeOf(part.num_rows, request.row_shape),
                      .rows = part.share,
                      .period = part.period,
                      .unzipped_head = part.unzipped_head,
                      .kept_rows = part.kept_rows,
                      .first_row = part.first_row,
                      .num_stored_rows = part.num_stored_rows});
    }
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor scales,
                             ReadScales(checkpoint_->tensors(), rows, request.columns));
    return std::optional(ScaledWeight{.values = std::move(values), .scales = scales.to(device_)});
  }

  absl::StatusOr<StoredKvScales> KvScalesOf(const std::string& layer) const override {
    return ReadKvScales(checkpoint_->tensors(), naming_.Published(layer));
  }

  CheckpointReader reader;

 private:
  std::vector<TensorPart> PartsOf(const WeightRequest& request) const {
    std::vector<TensorPart> parts;
    for (const WeightPart& part : request.parts) {
      parts.push_back({.name = naming_.Published(part.name),
                       .unzipped_head = part.unzipped_head,
                       .kept_rows = part.kept_rows,
                       .shape = ShapeOf(part.num_rows, request.row_shape),
                       .first_row = part.first_row,
                       .is_transposed = part.is_transposed,
                       .rows = part.share,
                       .period = part.period,
                       .columns = request.columns});
    }
    return parts;
  }

  std::shared_ptr<const Checkpoint> checkpoint_;
  TensorNaming naming_;
  c10::Device device_;
};

}  // namespace

std::vector<int64_t> WeightRequest::Shape() const {
  std::vector<int64_t> shape = ShapeOf(0, row_shape);
  for (const WeightPart& part : parts) shape[0] += part.num_rank_rows();
  if (columns.has_value()) shape.back() = columns->size;
  return shape;
}

absl::StatusOr<StoredKvScales> WeightSource::KvScalesOf(const std::string&) const {
  return StoredKvScales();
}

LayerReader::LayerReader(WeightSource& source, std::string prefix)
    : source_(source), prefix_(std::move(prefix)) {}

absl::StatusOr<at::Tensor> LayerReader::Add(std::vector<WeightPart> parts,
                                            std::vector<int64_t> row_shape, WeightKind kind,
                                            std::string_view suffix, double neutral,
                                            std::optional<Share> columns) const {
  for (WeightPart& part : parts) part.name = Joined(prefix_, part.name, suffix);
  return source_.Add({std::move(parts), std::move(row_shape), kind, neutral, columns});
}

absl::StatusOr<at::Tensor> LayerReader::Matrix(std::string_view name, std::vector<int64_t> shape,
                                               std::optional<Share> rows) const {
  std::vector<int64_t> row_shape(shape.begin() + 1, shape.end());
  return Add({{.name = std::string(name), .num_rows = shape[0], .share = rows}},
             std::move(row_shape), WeightKind::kMatrix, "", 1);
}

absl::StatusOr<at::Tensor> LayerReader::Norm(std::string_view name, int64_t size,
                                             double neutral) const {
  return Add({{std::string(name), size}}, {}, WeightKind::kNorm, "", neutral);
}

absl::StatusOr<at::Tensor> LayerReader::Bias(std::string_view name, int64_t size,
                                             std::optional<Share> rows) const {
  return Add({{.name = std::string(name), .num_rows = size, .share = rows}}, {}, WeightKind::kBias,
             "", 1);
}

absl::StatusOr<at::Tensor> LayerReader::Float32(std::string_view name, int64_t size,
                                                std::optional<Share> rows) const {
  return source_.Add({.parts = {{.name = Joined(prefix_, name), .num_rows = size, .share = rows}},
                      .row_shape = {},
                      .kind = WeightKind::kBias,
                      .dtype = DType::kFloat32});
}

absl::StatusOr<at::Tensor> LayerReader::Rows(const std::vector<WeightPart>& parts,
                                             std::vector<int64_t> row_shape, WeightKind kind,
                                             std::optional<Share> columns) const {
  return Add(parts, std::move(row_shape), kind, "", 1, columns);
}

absl::StatusOr<ScaledWeight> LayerReader::ProductWeight(std::vector<WeightPart> parts,
                                                        int64_t in_features,
                                                        std::optional<Share> columns) const {
  for (WeightPart& part : parts) part.name = Joined(prefix_, part.name, ".weight");
  const WeightRequest request = {.parts = std::move(parts),
                                 .row_shape = {in_features},
                                 .kind = WeightKind::kMatrix,
                                 .columns = columns,
                                 .may_have_scales = true};
  REPRISE_ASSIGN_OR_RETURN(std::optional<ScaledWeight> scaled, source_.AddScaled(request));
  if (scaled.has_value()) return *std::move(scaled);
  REPRISE_ASSIGN_OR_RETURN(at::Tensor values, source_.Add(request));
  return ScaledWeight{.values = std::move(values)};
}

absl::StatusOr<Linear> LayerReader::Projection(const std::vector<WeightPart>& parts,
                                               int64_t in_features, LinearBias bias) const {
  REPRISE_ASSIGN_OR_RETURN(ScaledWeight weight, ProductWeight(parts, in_features));
  std::optional<at::Tensor> added;
  if (bias == LinearBias::kAdded) {
    std::vector<WeightPart> vectors = parts;
    for (WeightPart& part : vectors) {
      part.stored_shape.clear();
      part.is_transposed = false;
    }
    REPRISE_ASSIGN_OR_RETURN(added, Add(vectors, {}, WeightKind::kBias, ".bias", 1));
  }
  return MakeLinear(std::move(weight), std::move(added));
}

absl::StatusOr<Linear> LayerReader::SummedProjection(std::string_view name, int64_t out_features,
                                                     int64_t in_features, const Share& columns,
                                                     LinearBias bias) const {
  const WeightPart part = {.name = std::string(name), .num_rows = out_features};
  REPRISE_ASSIGN_OR_RETURN(ScaledWeight weight, ProductWeight({part}, in_features, columns));
  std::optional<at::Tensor> added;
  if (bias == LinearBias::kAdded && ranks().rank == 0) {
    REPRISE_ASSIGN_OR_RETURN(added, Add({part}, {}, WeightKind::kBias, ".bias", 1));
  }
  return MakeLinear(std::move(weight), std::move(added));
}

namespace {

// The fault of an existing tensor; empty if it fits.
std::string ProblemOf(const ExpectedTensor& expected, const TensorView& tensor,
                      const TensorViews& tensors) {
  if (tensor.shape != expected.shape) {
    return absl::StrCat(expected.name, " must be ", ShapeString(expected.shape), ", got ",
                        ShapeString(tensor.shape));
  }
  const std::optional<DType> dtype = ToDType(tensor.type);
  if (dtype.has_value() && !IsFp8(*dtype)) return "";
  if (tensor.type != StoredType::kFp8E4M3) {
    return absl::StrCat(expected.name, " must be of 16, 32 or 64 bit floats, got ",
                        std::string(StoredTypeName(tensor.type)));
  }
  if (expected.may_have_scales) {
    return std::string(CheckScales(tensors, expected.name).message());
  }
  return absl::StrCat(expected.name,
                      " must be of 16, 32 or 64 bit floats, as embeddings, heads and experts of 8 "
                      "bits are not supported, got ",
                      std::string(StoredTypeName(tensor.type)));
}

// CheckTensors() of tensors with these names.
absl::Status CheckNamedTensors(const std::vector<ExpectedTensor>& all_expected,
                               const TensorViews& tensors, IsUnusedTensor is_unused,
                               const TensorNaming& naming) {
  Problem missing = {.what = "missing tensors", .names = {}};
  Problem wrong = {.what = "wrong tensors", .names = {}};
  Problem unknown = {.what = "unknown tensors", .names = {}};
  std::set<std::string> expected_names;
  std::set<const char*> expected_bytes;
  for (ExpectedTensor expected : all_expected) {
    expected.name = naming.Published(expected.name);
    expected_names.insert(expected.name);
    const auto found = tensors.find(expected.name);
    if (found == tensors.end()) {
      missing.names.push_back(expected.name);
      continue;
    }
    const TensorView& tensor = found->second;
    if (!tensor.bytes.empty()) expected_bytes.insert(tensor.bytes.data());
    if (tensor.type == StoredType::kFp8E4M3) {
      for (std::string& name : NamesBesideScaled(expected.name)) {
        expected_names.insert(std::move(name));
      }
    }
    std::string problem = ProblemOf(expected, tensor, tensors);
    if (!problem.empty()) wrong.names.push_back(std::move(problem));
  }
  for (const auto& [name, tensor] : tensors) {
    const bool is_duplicate = !tensor.bytes.empty() && expected_bytes.contains(tensor.bytes.data());
    if (is_duplicate || expected_names.contains(name)) continue;
    const std::optional<std::string> plain = naming.Plain(name);
    if (plain.has_value() && !is_unused(*plain)) unknown.names.push_back(name);
  }
  return StatusOf({std::move(missing), std::move(unknown), std::move(wrong)});
}

}  // namespace

absl::Status CheckTensors(const std::vector<ExpectedTensor>& expected, const TensorViews& tensors,
                          IsUnusedTensor is_unused, TensorNames names) {
  REPRISE_ASSIGN_OR_RETURN(const TensorNaming naming, TensorNaming::Of(names, tensors));
  return CheckNamedTensors(expected, tensors, is_unused, naming);
}

absl::StatusOr<std::vector<ExpectedTensor>> internal::ListTensors(ReadWeights read,
                                                                  const Ranks& ranks) {
  TensorList list(ranks);
  REPRISE_RETURN_IF_ERROR(CatchTorch([&] { return read(list); }));
  return std::move(list.tensors);
}

absl::Status internal::LoadWeights(const std::string& folder, const LoadWeightsOptions& options,
                                   IsUnusedTensor is_unused, TensorNames names, ReadWeights read) {
  REPRISE_ASSIGN_OR_RETURN(Checkpoint opened, Checkpoint::Open(folder));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<ExpectedTensor> expected, ListTensors(read, {}));
  const absl::StatusOr<TensorNaming> naming = TensorNaming::Of(names, opened.tensors());
  const absl::Status fits = naming.ok()
                                ? CheckNamedTensors(expected, opened.tensors(), is_unused, *naming)
                                : naming.status();
  if (!fits.ok()) return absl::Status(fits.code(), absl::StrCat(folder, ": ", fits.message()));
  const auto checkpoint = std::make_shared<const Checkpoint>(std::move(opened));
  REPRISE_ASSIGN_OR_RETURN(
      const DType dtype,
      ChooseDType(*checkpoint, naming->Published(expected.front().name), options.dtype));
  return CatchTorch([&]() -> absl::Status {
    CheckpointSource source(checkpoint, *naming, options.device, dtype, options.ranks);
    REPRISE_RETURN_IF_ERROR(read(source));
    return source.reader.Run({.on_progress = options.on_progress});
  });
}

std::string DecoderLayerPrefix(int layer) { return absl::StrCat("model.layers.", layer, "."); }

bool IsUnusedDecoderTensor(std::string_view name, const DecoderExtent& extent) {
  if (name.ends_with(".rotary_emb.inv_freq")) return true;
  if (extent.ties_embeddings && name == "lm_head.weight") return true;
  for (const std::string_view prefix : {"mtp.", "model.mtp.", "model.mtp_layers."}) {
    if (name.starts_with(prefix)) return true;
  }
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return false;
  const char* const end = name.data() + name.size();
  int layer = 0;
  const auto [rest, error] = std::from_chars(name.data() + kLayers.size(), end, layer);
  return error == std::errc() && rest != end && *rest == '.' && layer >= extent.num_layers &&
         layer < extent.num_layers + extent.num_prediction_layers;
}

absl::Status CheckWeights(absl::Span<const NamedWeight> expected,
                          absl::Span<const NamedWeight> weights) {
  CHECK_EQ(expected.size(), weights.size());
  const auto shape = [](const at::Tensor& tensor) {
    return ShapeString({tensor.sizes().data(), tensor.sizes().size()});
  };
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor* const wanted = expected[i].tensor;
    const at::Tensor* const got = weights[i].tensor;
    const char* const name = expected[i].name;
    if (wanted == nullptr && got == nullptr) continue;
    if (wanted == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " must not be there, as the config does without: expected none, got ",
                       shape(*got)));
    }
    if (got == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " must be there, as the config asks for it: expected ", shape(*wanted),
                       ", got none"));
    }
    if (!got->defined() || got->sizes() != wanted->sizes()) {
      return absl::InvalidArgumentError(absl::StrCat(name, " must be ", shape(*wanted), ": got ",
                                                     got->defined() ? shape(*got) : "nothing"));
    }
  }
  return absl::OkStatus();
}

}  // namespace reprise
