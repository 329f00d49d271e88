// Parts of the suites of attention/testing/draft_attention.h: deterministic contents, attention by
// definition over these contents, and memory on a device that stays in place while its contents
// change.
//
// Only for these suites. Thread safety: not thread-safe.

#ifndef REPRISE_ATTENTION_TESTING_ATTENDED_H_
#define REPRISE_ATTENTION_TESTING_ATTENDED_H_

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>
#include <vector>

#include "reprise/attention/testing/draft_attention.h"
#include "reprise/attention/testing/draft_definitions.h"
#include "reprise/attention/testing/draft_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/element_access.h"
#include "reprise/base/testing/builder_memory.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr int kHeads = 4;
inline constexpr int kKvHeads = 2;
inline constexpr int kDim = 64;

inline at::TensorOptions Floats(const at::Device& device) {
  return at::TensorOptions(device).dtype(at::kFloat);
}

inline at::TensorOptions Of(const at::Device& device, DType dtype) {
  return at::TensorOptions(device).dtype(ToScalarType(dtype));
}

// Returns a number in [-1, 1) that depends only on the arguments and is exact in float32.
inline double Content(uint64_t kind, uint64_t row, uint64_t place, uint64_t at) {
  uint64_t bits = (kind * 1000003 + row) * 1000003 + place;
  bits = (bits * 1000003 + at) * 0x9e3779b97f4a7c15;
  bits ^= bits >> 29;
  bits *= 0xbf58476d1ce4e5b9;
  return static_cast<double>(bits >> 48) / 32768.0 - 1.0;
}

enum Kind : uint64_t { kQuery, kKey, kValue };

// The contents after storing in the given types: kHeads * kDim numbers per query, kKvHeads * kDim
// per key or value. Each is computed once.
class Contents {
 public:
  explicit Contents(const DraftAttentionTypes& types) : types_(types) {}

  const std::vector<double>& Of(Kind kind, int64_t row, int64_t place) {
    std::vector<double>& stored = stored_[{kind, row, place}];
    if (!stored.empty()) return stored;
    const DType dtype = kind == kQuery ? types_.q : types_.kv;
    const int size = (kind == kQuery ? kHeads : kKvHeads) * kDim;
    uint64_t bytes = 0;
    for (int i = 0; i < size; ++i) {
      StoreElement(&bytes, dtype, 0, Content(kind, row, place, i));
      stored.push_back(LoadElement<double>(&bytes, dtype, 0));
    }
    return stored;
  }

 private:
  DraftAttentionTypes types_;
  std::map<std::tuple<Kind, int64_t, int64_t>, std::vector<double>> stored_;
};

// Attention by definition. q of token t is Content(kQuery, 0, t). Keys and values have the contents
// of (row, place).
struct Dense {
  std::vector<double> out;  // [num_tokens, kHeads, kDim]
  std::vector<double> lse;  // [num_tokens, kHeads]
};

inline Dense Attend(const DraftAttentionTypes& types, const std::vector<SeenKey>& seen,
                    int num_tokens, const float* sinks,
                    const std::function<int64_t(const SeenKey&)>& content_row,
                    std::optional<float> softcap = {}) {
  Contents contents(types);
  Dense dense = {std::vector<double>(int64_t{num_tokens} * kHeads * kDim, 0.0),
                 std::vector<double>(int64_t{num_tokens} * kHeads, -kInf)};
  std::vector<std::vector<const SeenKey*>> of_token(num_tokens);
  for (const SeenKey& key : seen) of_token[key.token].push_back(&key);
  std::vector<double> scores;
  for (int t = 0; t < num_tokens; ++t) {
    if (of_token[t].empty()) continue;
    const double* const q = contents.Of(kQuery, 0, t).data();
    for (int h = 0; h < kHeads; ++h) {
      const int kv_head = h / (kHeads / kKvHeads);
      double largest = sinks ? sinks[h] : -kInf;
      scores.clear();
      for (const SeenKey* key : of_token[t]) {
        const double* const k = contents.Of(kKey, content_row(*key), key->place).data();
        double score = 0;
        for (int d = 0; d < kDim; ++d) score += q[h * kDim + d] * k[kv_head * kDim + d];
        score /= std::sqrt(static_cast<double>(kDim));
        scores.push_back(softcap ? *softcap * std::tanh(score / *softcap) : score);
        largest = std::max(largest, scores.back());
      }
      double total = sinks ? std::exp(sinks[h] - largest) : 0;
      for (double& score : scores) total += score = std::exp(score - largest);
      double* const out = &dense.out[(int64_t{t} * kHeads + h) * kDim];
      for (size_t i = 0; i < scores.size(); ++i) {
        const SeenKey& key = *of_token[t][i];
        const double* const v = contents.Of(kValue, content_row(key), key.place).data();
        for (int d = 0; d < kDim; ++d) out[d] += scores[i] / total * v[kv_head * kDim + d];
      }
      dense.lse[int64_t{t} * kHeads + h] = largest + std::log(total);
    }
  }
  return dense;
}

inline int64_t OwnRow(const SeenKey& key) { return key.row; }

// Returns the queries on the device: Content(kQuery, 0, t) for token t.
inline at::Tensor QueriesOf(const DraftAttentionDevice& device, const DraftAttentionTypes& types,
                            int num_tokens) {
  at::Tensor q = at::empty({num_tokens, kHeads, kDim}, Floats(at::kCPU));
  for (int t = 0; t < num_tokens; ++t) {
    for (int i = 0; i < kHeads * kDim; ++i) {
      q.mutable_data_ptr<float>()[int64_t{t} * kHeads * kDim + i] =
          static_cast<float>(Content(kQuery, 0, t, i));
    }
  }
  return q.to(ToScalarType(types.q)).to(device.torch);
}

// q, the cache and the results on the device. They stay in place while their contents change.
class Attended {
 public:
  Attended(const DraftAttentionDevice& device, const DraftAttentionTypes& types,
           const BlockTableView& table, int num_tokens)
      : device_(device),
        types_(types),
        block_size_(table.block_size),
        host_k_(at::empty({table.num_blocks, table.block_size, kKvHeads, kDim}, Floats(at::kCPU))),
        host_v_(at::empty_like(host_k_)),
        k_(at::empty(host_k_.sizes(), Of(device.torch, types.kv))),
        v_(at::empty(host_k_.sizes(), Of(device.torch, types.kv))),
        q_(QueriesOf(device, types, num_tokens)),
        out_(at::empty({num_tokens, kHeads, kDim}, Floats(device.torch))),
        lse_(at::empty({num_tokens, kHeads}, Floats(device.torch))) {
    Clear();
  }

  // Removes all keys.
  void Clear() {
    host_k_.fill_(kNan);
    host_v_.fill_(kNan);
  }

  void Write(int64_t slot, int64_t row, int64_t place) {
    for (int i = 0; i < kKvHeads * kDim; ++i) {
      const int64_t at = slot * kKvHeads * kDim + i;
      host_k_.mutable_data_ptr<float>()[at] = static_cast<float>(Content(kKey, row, place, i));
      host_v_.mutable_data_ptr<float>()[at] = static_cast<float>(Content(kValue, row, place, i));
    }
  }

  // Copies the written keys to the device, and poisons the results and, if the plan has one, the
  // tile schedule.
  void Upload() {
    k_.copy_(host_k_.to(k_.scalar_type()));
    v_.copy_(host_v_.to(v_.scalar_type()));
    out_.fill_(kNan);
    lse_.fill_(kNan);
    if (plan_.poison) plan_.poison();
  }

  // Sets the layer and the batch for Run().
  void Plan(const AttentionParams& layer, const PagedBatch& batch) {
    const auto view = [&](const at::Tensor& tensor) {
      return KvView{.data = tensor.data_ptr(),
                    .block_stride = tensor.stride(0),
                    .token_stride = tensor.stride(1),
                    .head_stride = tensor.stride(2),
                    .dim_chunk = kDim,
                    .dim_chunk_stride = kDim};
    };
    const KvLayer kv = {.k = view(k_),
                        .v = view(v_),
                        .dtype = types_.kv,
                        .num_blocks = static_cast<int>(k_.size(0)),
                        .block_size = block_size_,
                        .num_kv_heads = kKvHeads,
                        .head_dim_qk = kDim,
                        .head_dim_v = kDim};
    plan_ = device_.plan(layer, batch, q_, kv, out_, lse_);
  }

  // Builds the tile schedule, if any, and computes the attention. May be captured on a GPU.
  absl::Status Run() { return plan_.run(); }

  at::Tensor& out() { return out_; }
  at::Tensor& lse() { return lse_; }

 private:
  const DraftAttentionDevice& device_;
  DraftAttentionTypes types_;
  int block_size_;
  at::Tensor host_k_, host_v_, k_, v_, q_, out_, lse_;
  AttendPlan plan_;
};

inline AttentionParams DrawLayer(Random& random) {
  AttentionParams layer = {
      .num_q_heads = kHeads, .num_kv_heads = kKvHeads, .head_dim_qk = kDim, .head_dim_v = kDim};
  if (random.OneIn(2)) layer.window_left = random.Pick({0, 1, random.Int(0, 40)});
  return layer;
}

// Sinks of a layer, on the host and on the device. Half of all cases have no sinks.
class Sinks {
 public:
  Sinks(Random& random, const at::Device& device) : host_(kHeads) {
    for (float& sink : host_) sink = static_cast<float>(random.Real(-2, 2));
    if (random.OneIn(2)) host_.clear();
    device_ = at::empty({static_cast<int64_t>(host_.size())}, Floats(at::kCPU));
    std::ranges::copy(host_, device_.mutable_data_ptr<float>());
    device_ = device_.to(device);
  }

  const float* host() const { return host_.empty() ? nullptr : host_.data(); }
  const float* device() const { return host_.empty() ? nullptr : device_.const_data_ptr<float>(); }

 private:
  std::vector<float> host_;
  at::Tensor device_;
};

// Returns an empty string if both agree within the limits: 2e-5 if q is float32. If q is narrower
// than float32, the limits are 8e-3 for out, because of 16-bit softmax weights, and 2e-3 for lse.
inline std::string Difference(const DraftAttentionTypes& types, const at::Tensor& out,
                              const at::Tensor& lse, const Dense& expected) {
  const bool is_exact = types.q == DType::kFloat32;
  const double out_limit = is_exact ? 2e-5 : 8e-3;
  const double lse_limit = is_exact ? 2e-5 : 2e-3;
  const at::Tensor got = out.to(at::kCPU).contiguous();
  const at::Tensor got_lse = lse.to(at::kCPU).contiguous();
  std::ostringstream text;
  for (size_t i = 0; i < expected.out.size(); ++i) {
    const float value = got.const_data_ptr<float>()[i];
    if (std::abs(value - expected.out[i]) <= out_limit) continue;
    text << "out of token " << i / (kHeads * kDim) << ": expected " << expected.out[i] << ", got "
         << value;
    return text.str();
  }
  for (size_t i = 0; i < expected.lse.size(); ++i) {
    const double value = got_lse.const_data_ptr<float>()[i];
    if (value == expected.lse[i] || std::abs(value - expected.lse[i]) <= lse_limit) continue;
    text << "lse of token " << i / kHeads << ": expected " << expected.lse[i] << ", got " << value;
    return text.str();
  }
  return "";
}

// Sets the strides and sizes of `merge` for merging results like `out` and `lse` into them.
inline void MergeInto(MergeStatesArgs& merge, at::Tensor& out, at::Tensor& lse) {
  merge.part = {.token_stride = kHeads * kDim, .head_stride = kDim};
  merge.part_lse_view = {.token_stride = kHeads, .head_stride = 1};
  merge.out = merge.part;
  merge.out.data = out.data_ptr();
  merge.lse = {.data = lse.data_ptr<float>(), .token_stride = kHeads, .head_stride = 1};
  merge.num_tokens = static_cast<int>(out.size(0));
  merge.num_heads = kHeads;
  merge.head_dim = kDim;
}

// A builder's memory on the device: a copy of the arrays drawn on the host.
template <typename Args>
class OnDevice {
 public:
  OnDevice(const DraftAttentionDevice& device, BuilderMemory<Args>& host)
      : bytes_(at::empty({host.num_bytes()}, at::TensorOptions(device.torch).dtype(at::kByte))),
        args_(host.ArgsAt(reinterpret_cast<std::byte*>(bytes_.data_ptr()))) {}

  Args& args() { return args_; }

  void Upload(BuilderMemory<Args>& host) {
    bytes_.copy_(
        at::from_blob(host.base(), {host.num_bytes()}, at::TensorOptions().dtype(at::kByte)));
  }

 private:
  at::Tensor bytes_;
  Args args_;
};

inline std::string Describe(const DraftShape& shape, std::string difference) {
  if (difference.empty()) return difference;
  std::ostringstream text;
  text << difference << " (" << shape << ")";
  return text.str();
}

// Writes the first seq_len + num_new keys of every sequence, limited by the table, to the slots
// given by the definition.
inline void WriteSequences(Attended& attended, const BlockTableView& table, const int32_t* seq_len,
                           int64_t num_new) {
  const int64_t capacity = int64_t{table.max_blocks} * table.block_size;
  for (int row = 0; row < table.num_tables; ++row) {
    const int64_t num_keys = std::min<int64_t>(capacity, seq_len[row] + num_new);
    for (int64_t place = 0; place < num_keys; ++place) {
      attended.Write(SlotByDefinition(table, row, place), row, place);
    }
  }
}

inline DraftShape SmallShape(Random& random) {
  DraftShape shape = DrawDraftShape(random);
  shape.max_new = std::min(shape.max_new, 20);
  shape.num_tokens = shape.num_rows * shape.max_new + random.Int(0, 3);
  return shape;
}

// The steps of a suite for each set of contents.
struct Suite {
  // Draws contents and copies them to the device, over the previous contents.
  std::function<void()> fill;
  // Runs the builders, the tile schedules and the attention. Does not wait.
  std::function<absl::Status()> step;
  // Returns the difference from the definition for the contents of the last fill().
  std::function<std::string()> difference;
};

// Runs the suite eagerly, then captures it as one graph and replays it over other contents.
inline std::string RunSuite(const DraftAttentionDevice& device, const Suite& suite) {
  suite.fill();
  if (const absl::Status status = suite.step(); !status.ok()) return status.ToString();
  if (const std::string text = suite.difference(); !text.empty()) return text;
  const absl::StatusOr<std::function<void()>> replay = device.capture(suite.step);
  if (!replay.ok()) return replay.status().ToString();
  for (int contents = 0; contents < 3; ++contents) {
    suite.fill();
    (*replay)();
    const std::string text = suite.difference();
    if (!text.empty()) return "replayed: " + text;
  }
  return "";
}

inline at::Tensor IntsOn(const DraftAttentionDevice& device, int64_t count) {
  // Allocates one more element, so that an empty array has an address.
  return at::full({count + 1}, -7, at::TensorOptions(device.torch).dtype(at::kInt));
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_ATTENDED_H_
