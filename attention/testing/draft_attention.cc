#include "attention/testing/draft_attention.h"

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

#include "attention/metadata/chain_batch.h"
#include "attention/metadata/context_parallel.h"
#include "attention/metadata/cross_batch.h"
#include "attention/metadata/local_virtual_batch.h"
#include "attention/speculation/draft_steps.h"
#include "attention/speculation/tree_batch.h"
#include "attention/testing/draft_definitions.h"
#include "attention/testing/draft_generator.h"
#include "attention/testing/random.h"
#include "base/element_access.h"
#include "base/testing/builder_memory.h"
#include "base/torch_dtype.h"

namespace reprise {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kDim = 64;

at::TensorOptions Floats(const at::Device& device) {
  return at::TensorOptions(device).dtype(at::kFloat);
}

at::TensorOptions Of(const at::Device& device, DType dtype) {
  return at::TensorOptions(device).dtype(ToScalarType(dtype));
}

// The same number for the same names, in (-1, 1), exact in float32.
double Content(uint64_t kind, uint64_t row, uint64_t place, uint64_t at) {
  uint64_t bits = (kind * 1000003 + row) * 1000003 + place;
  bits = (bits * 1000003 + at) * 0x9e3779b97f4a7c15;
  bits ^= bits >> 29;
  bits *= 0xbf58476d1ce4e5b9;
  return static_cast<double>(bits >> 48) / 32768.0 - 1.0;
}

enum Kind : uint64_t { kQuery, kKey, kValue };

// The numbers as they are stored in these types: kHeads * kDim of a query, kKvHeads * kDim of a key
// or value. Computed once each.
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

// Attention by definition: q of token t is Content(kQuery, 0, t), keys and values are those of
// (row, place).
struct Dense {
  std::vector<double> out;  // [num_tokens, kHeads, kDim]
  std::vector<double> lse;  // [num_tokens, kHeads]
};

Dense Attend(const DraftAttentionTypes& types, const std::vector<SeenKey>& seen, int num_tokens,
             const float* sinks, const std::function<int64_t(const SeenKey&)>& content_row,
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

int64_t OwnRow(const SeenKey& key) { return key.row; }

// q, the cache and the results on the device, where they stay while their contents change.
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
        out_(at::empty({num_tokens, kHeads, kDim}, Floats(device.torch))),
        lse_(at::empty({num_tokens, kHeads}, Floats(device.torch))) {
    at::Tensor q = at::empty({num_tokens, kHeads, kDim}, Floats(at::kCPU));
    for (int t = 0; t < num_tokens; ++t) {
      for (int i = 0; i < kHeads * kDim; ++i) {
        q.mutable_data_ptr<float>()[int64_t{t} * kHeads * kDim + i] =
            static_cast<float>(Content(kQuery, 0, t, i));
      }
    }
    q_ = q.to(ToScalarType(types.q)).to(device.torch);
    Clear();
  }

  // No key is written.
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

  // Takes what was written to the device, and poisons the results and the map.
  void Upload() {
    k_.copy_(host_k_.to(k_.scalar_type()));
    v_.copy_(host_v_.to(v_.scalar_type()));
    out_.fill_(kNan);
    lse_.fill_(kNan);
    if (plan_.poison) plan_.poison();
  }

  // What Run() does from now on.
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

  // May be captured.
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

AttentionParams DrawLayer(Random& random) {
  AttentionParams layer = {
      .num_q_heads = kHeads, .num_kv_heads = kKvHeads, .head_dim_qk = kDim, .head_dim_v = kDim};
  if (random.OneIn(2)) layer.window_left = random.Pick({0, 1, random.Int(0, 40)});
  return layer;
}

// Sinks of a layer, on the host and on the device; absent in half of all cases.
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

// Empty if they agree up to a few roundings of float32 or, of out, up to those of weights of 16 bits.
std::string Difference(const DraftAttentionTypes& types, const at::Tensor& out,
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

// Strides and sizes of a merge of results like `out` and `lse` into them.
void MergeInto(MergeStatesArgs& merge, at::Tensor& out, at::Tensor& lse) {
  merge.part = {.token_stride = kHeads * kDim, .head_stride = kDim};
  merge.part_lse_view = {.token_stride = kHeads, .head_stride = 1};
  merge.out = merge.part;
  merge.out.data = out.data_ptr();
  merge.lse = {.data = lse.data_ptr<float>(), .token_stride = kHeads, .head_stride = 1};
  merge.num_tokens = static_cast<int>(out.size(0));
  merge.num_heads = kHeads;
  merge.head_dim = kDim;
}

// A builder's memory on the device: a copy of what was drawn on the host.
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

std::string Describe(const DraftShape& shape, std::string difference) {
  if (difference.empty()) return difference;
  std::ostringstream text;
  text << difference << " (" << shape << ")";
  return text.str();
}

// Keys 0..num_keys of every sequence, where the definition puts them.
void WriteSequences(Attended& attended, const BlockTableView& table, const int32_t* seq_len,
                    int64_t num_new) {
  const int64_t capacity = int64_t{table.max_blocks} * table.block_size;
  for (int row = 0; row < table.num_tables; ++row) {
    const int64_t num_keys = std::min<int64_t>(capacity, seq_len[row] + num_new);
    for (int64_t place = 0; place < num_keys; ++place) {
      attended.Write(SlotByDefinition(table, row, place), row, place);
    }
  }
}

DraftShape SmallShape(Random& random) {
  DraftShape shape = DrawDraftShape(random);
  shape.max_new = std::min(shape.max_new, 20);
  shape.num_tokens = shape.num_rows * shape.max_new + random.Int(0, 3);
  return shape;
}

// What a suite does with each set of contents.
struct Suite {
  // Draws contents and takes them to the device, over those before.
  std::function<void()> fill;
  // Builders, maps and attention. Does not wait.
  std::function<absl::Status()> step;
  // From what the definition says of the contents of the last fill().
  std::function<std::string()> difference;
};

// Eagerly once, then captured as one graph and replayed over other contents.
std::string RunSuite(const DraftAttentionDevice& device, const Suite& suite) {
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

// Chains of verified drafts: the attention of their rows, or of rows that a further builder makes of
// them.
class Chains {
 public:
  Chains(const DraftAttentionDevice& device, const DraftShape& shape, Random& random)
      : shape_(shape),
        random_(random),
        host_([&](ArrayCarver& carver) { return CarveChainBatch(shape, carver); }),
        on_device_(device, host_) {}

  void Fill(Attended& attended) {
    host_.Poison();
    DrawChainBatch(random_, shape_, 0, host_.args());
    on_device_.Upload(host_);
    attended.Clear();
    WriteSequences(attended, host_.args().table, host_.args().seq_len, shape_.max_new);
    attended.Upload();
  }

  ChainBatchArgs& host() { return host_.args(); }
  ChainBatchArgs& on_device() { return on_device_.args(); }

 private:
  DraftShape shape_;
  Random& random_;
  BuilderMemory<ChainBatchArgs> host_;
  OnDevice<ChainBatchArgs> on_device_;
};

at::Tensor IntsOn(const DraftAttentionDevice& device, int64_t count) {
  // Not empty, so that it has an address.
  return at::full({count + 1}, -7, at::TensorOptions(device.torch).dtype(at::kInt));
}

}  // namespace

std::string AttendThroughChain(const DraftAttentionDevice& device, const DraftAttentionTypes& types,
                               uint64_t seed) {
  Random random(seed);
  const DraftShape shape = SmallShape(random);
  const AttentionParams layer = DrawLayer(random);
  Chains chains(device, shape, random);
  Attended attended(device, types, chains.host().table, shape.num_tokens);
  attended.Plan(layer, ChainBatch(chains.on_device()));
  const Suite suite = {.fill = [&] { chains.Fill(attended); },
                       .step =
                           [&] {
                             device.chain(chains.on_device());
                             return attended.Run();
                           },
                       .difference =
                           [&] {
                             const Dense expected =
                                 Attend(types, ChainByDefinition(chains.host(), layer.window_left),
                                        shape.num_tokens, nullptr, OwnRow);
                             return Difference(types, attended.out(), attended.lse(), expected);
                           }};
  return Describe(shape, RunSuite(device, suite));
}

std::string AttendThroughChunks(const DraftAttentionDevice& device,
                                const DraftAttentionTypes& types, uint64_t seed) {
  Random random(seed);
  const DraftShape shape = SmallShape(random);
  AttentionParams layer = DrawLayer(random);
  layer.window_left.reset();
  Chains chains(device, shape, random);
  const int chunk = random.Pick({1, 4, 16, random.Int(1, 64)});
  const int max_rows = MaxLocalRows(shape.num_rows, shape.num_tokens, chunk);
  at::Tensor loc = IntsOn(device, max_rows + 1), lens = IntsOn(device, max_rows);
  at::Tensor row = IntsOn(device, max_rows), start = IntsOn(device, max_rows);
  const LocalVirtualBatchArgs local = {.batch = ChainBatch(chains.on_device()),
                                       .chunk_size = chunk,
                                       .buffers = {.query_start_loc = loc.data_ptr<int32_t>(),
                                                   .seq_lens = lens.data_ptr<int32_t>(),
                                                   .table_row = row.data_ptr<int32_t>(),
                                                   .key_start = start.data_ptr<int32_t>(),
                                                   .max_rows = max_rows}};
  Attended attended(device, types, chains.host().table, shape.num_tokens);
  attended.Plan(layer, LocalVirtualBatch(local));
  const Suite suite = {.fill =
                           [&] {
                             chains.Fill(attended);
                             for (at::Tensor* array : {&loc, &lens, &row, &start}) array->fill_(-7);
                           },
                       .step =
                           [&] {
                             device.chain(chains.on_device());
                             device.local(local);
                             return attended.Run();
                           },
                       .difference =
                           [&] {
                             std::vector<SeenKey> seen = ChainByDefinition(chains.host(), {});
                             std::erase_if(seen, [&](const SeenKey& key) {
                               return key.key_position / chunk != key.query_position / chunk;
                             });
                             return Difference(
                                 types, attended.out(), attended.lse(),
                                 Attend(types, seen, shape.num_tokens, nullptr, OwnRow));
                           }};
  return Describe(shape, RunSuite(device, suite));
}

std::string AttendThroughCross(const DraftAttentionDevice& device, const DraftAttentionTypes& types,
                               uint64_t seed) {
  Random random(seed);
  DraftShape shape = SmallShape(random);
  shape.max_blocks = std::min(shape.max_blocks, 100 / shape.block_size + 1);
  AttentionParams layer = DrawLayer(random);
  layer.window_left.reset();
  BuilderMemory<CrossDraftArgs> host(
      [&](ArrayCarver& carver) { return CarveCrossDraft(shape, carver); });
  OnDevice<CrossDraftArgs> on_device(device, host);
  const BlockTableView& table = host.args().cross.table;
  const int32_t* const encoder_lens = host.args().cross.encoder_lens;
  Attended attended(device, types, table, shape.num_tokens);
  attended.Plan(layer, CrossBatch(on_device.args().cross));
  const Suite suite = {.fill =
                           [&] {
                             host.Poison();
                             DrawCrossDraft(random, shape, host.args());
                             on_device.Upload(host);
                             attended.Clear();
                             WriteSequences(attended, table, encoder_lens, 0);
                             attended.Upload();
                           },
                       .step =
                           [&] {
                             device.chain(on_device.args().decoder);
                             device.cross(on_device.args().cross);
                             return attended.Run();
                           },
                       .difference =
                           [&] {
                             std::vector<SeenKey> seen;
                             int last_token = -1;
                             for (const SeenKey& own : ChainByDefinition(host.args().decoder, {})) {
                               if (own.token == last_token) continue;
                               last_token = own.token;
                               for (int key = 0; key < encoder_lens[own.row]; ++key) {
                                 seen.push_back({.token = own.token, .row = own.row, .place = key});
                               }
                             }
                             return Difference(
                                 types, attended.out(), attended.lse(),
                                 Attend(types, seen, shape.num_tokens, nullptr, OwnRow));
                           }};
  return Describe(shape, RunSuite(device, suite));
}

std::string AttendThroughTree(const DraftAttentionDevice& device, const DraftAttentionTypes& types,
                              uint64_t seed) {
  Random random(seed);
  DraftShape shape = DrawDraftShape(random);  // up to 64 nodes
  shape.num_rows = std::min(shape.num_rows, 3);
  const AttentionParams layer = DrawLayer(random);
  BuilderMemory<TreeBatchArgs> host(
      [&](ArrayCarver& carver) { return CarveTreeBatch(shape, carver); });
  OnDevice<TreeBatchArgs> on_device(device, host);
  Attended attended(device, types, host.args().table, shape.num_tokens);
  attended.Plan(layer, TreeBatch(on_device.args()));
  const Suite suite = {
      .fill =
          [&] {
            host.Poison();
            DrawTreeBatch(random, shape, 0, host.args());
            on_device.Upload(host);
            attended.Clear();
            WriteSequences(attended, host.args().table, host.args().seq_len, shape.max_new);
            attended.Upload();
          },
      .step =
          [&] {
            device.tree(on_device.args());
            return attended.Run();
          },
      .difference =
          [&] {
            const Dense expected = Attend(types, TreeByDefinition(host.args(), layer.window_left),
                                          shape.num_tokens, nullptr, OwnRow);
            return Difference(types, attended.out(), attended.lse(), expected);
          }};
  return Describe(shape, RunSuite(device, suite));
}

// All levels of a tree in one step, each with its attention.
std::string AttendThroughDraftLevels(const DraftAttentionDevice& device,
                                     const DraftAttentionTypes& types, uint64_t seed) {
  Random random(seed);
  const DraftShape shape = DrawDraftShape(random);
  const AttentionParams layer = DrawLayer(random);
  BuilderMemory<GrownTreeArgs> host(
      [&](ArrayCarver& carver) { return CarveGrownTree(shape, carver); });
  OnDevice<GrownTreeArgs> on_device(device, host);
  const int num_tokens = shape.num_rows * shape.width;
  const DraftLevelArgs& level = host.args().level;
  std::deque<Attended> attended;
  std::vector<Dense> expected;
  for (int step = 0; step < shape.num_steps; ++step) {
    attended.emplace_back(device, types, level.rows.table, num_tokens)
        .Plan(layer, DraftLevelBatch(LevelOf(on_device.args(), step)));
  }
  const Suite suite = {
      .fill =
          [&] {
            host.Poison();
            DrawGrownTree(random, shape, 0, host.args());
            on_device.Upload(host);
            std::vector<std::vector<int32_t>> trees(shape.num_rows);
            expected.clear();
            for (int step = 0; step < shape.num_steps; ++step) {
              const DraftLevelArgs args = LevelOf(host.args(), step);
              for (int r = 0; r < shape.num_rows; ++r) {
                trees[r].insert(trees[r].end(), args.parents + r * shape.width,
                                args.parents + (r + 1) * shape.width);
              }
              expected.push_back(Attend(types,
                                        DraftLevelByDefinition(args, trees, layer.window_left),
                                        num_tokens, nullptr, OwnRow));
              attended[step].Clear();
              WriteSequences(attended[step], level.rows.table, level.rows.seq_len,
                             int64_t{shape.num_steps} * shape.width);
              attended[step].Upload();
            }
          },
      .step =
          [&] {
            absl::Status status;
            for (int step = 0; step < shape.num_steps; ++step) {
              device.draft_level(LevelOf(on_device.args(), step));
              status.Update(attended[step].Run());
            }
            return status;
          },
      .difference =
          [&] {
            for (int step = 0; step < shape.num_steps; ++step) {
              const std::string text =
                  Difference(types, attended[step].out(), attended[step].lse(), expected[step]);
              if (!text.empty()) return "level " + std::to_string(step) + ": " + text;
            }
            return std::string();
          }};
  return Describe(shape, RunSuite(device, suite));
}

std::string AttendThroughRanks(const DraftAttentionDevice& device, const DraftAttentionTypes& types,
                               uint64_t seed) {
  Random random(seed);
  const DraftShape shape = SmallShape(random);
  const int world = random.Int(2, 4);
  const int interleave = random.Pick({1, 2, 16});
  const AttentionParams layer = DrawLayer(random);
  const Sinks sinks(random, device.torch);

  // Lengths are global; every rank has tables of its own, here of the same blocks.
  BuilderMemory<ChainBatchArgs> host([&](ArrayCarver& carver) {
    ChainBatchArgs args = CarveChainBatch(shape, carver);
    args.key_positions = {.rank = 0, .world = world, .interleave = interleave};
    return args;
  });
  const BlockTableView& table = host.args().table;
  const int32_t* const seq_lens = host.args().seq_len;
  const int64_t limit = ContextLimit(table, host.args().max_context_len, host.args().key_positions);
  std::deque<OnDevice<ChainBatchArgs>> on_device;
  std::deque<Attended> ranks;
  MergeStatesArgs merge;
  for (int rank = 0; rank < world; ++rank) {
    on_device.emplace_back(device, host).args().key_positions.rank = rank;
    Attended& attended = ranks.emplace_back(device, types, table, shape.num_tokens);
    attended.Plan(layer, ChainBatch(on_device[rank].args()));
    merge.part_out[rank] = attended.out().data_ptr();
    merge.part_lse[rank] = attended.lse().data_ptr<float>();
  }
  at::Tensor out = at::full_like(ranks[0].out(), kNan);
  at::Tensor lse = at::full_like(ranks[0].lse(), kNan);
  MergeInto(merge, out, lse);
  merge.num_parts = world;
  merge.sinks = sinks.device();

  // Keys of a rank, by counting in runs, not by the builder's functions.
  const auto write_share = [&](int rank) {
    const auto share = [&](int64_t num_tokens) {
      return LocalLen(num_tokens, {.rank = rank, .world = world, .interleave = interleave});
    };
    ranks[rank].Clear();
    for (int row = 0; row < shape.num_tables; ++row) {
      const int64_t num_keys = share(std::min<int64_t>(limit, seq_lens[row] + shape.max_new));
      for (int64_t local = 0; local < num_keys; ++local) {
        if (local / shape.block_size * shape.block_size >= seq_lens[row] + shape.max_new) {
          break;  // the table has no block there and must not be read
        }
        const int64_t place = (local / interleave * world + rank) * interleave + local % interleave;
        ranks[rank].Write(SlotByDefinition(table, row, local), row, place);
      }
    }
    ranks[rank].Upload();
  };
  const Suite suite = {.fill =
                           [&] {
                             host.Poison();
                             DrawChainBatch(random, shape, 0, host.args());
                             for (int row = 0; row < shape.num_tables; ++row) {
                               auto& seq_len = const_cast<int32_t&>(seq_lens[row]);
                               seq_len = static_cast<int32_t>(std::min<int64_t>(seq_len, limit));
                               if (random.OneIn(4))
                                 seq_len = std::min(seq_len, random.Int(0, 2));  // empty shares
                             }
                             for (int rank = 0; rank < world; ++rank) {
                               on_device[rank].Upload(host);
                               write_share(rank);
                             }
                             out.fill_(kNan);
                             lse.fill_(kNan);
                           },
                       .step =
                           [&] {
                             absl::Status status;
                             for (int rank = 0; rank < world; ++rank) {
                               device.chain(on_device[rank].args());
                               status.Update(ranks[rank].Run());
                             }
                             device.merge(merge);
                             return status;
                           },
                       .difference =
                           [&] {
                             const Dense expected =
                                 Attend(types, ChainByDefinition(host.args(), layer.window_left),
                                        shape.num_tokens, sinks.host(), OwnRow);
                             return Difference(types, out, lse, expected);
                           }};
  return Describe(shape, RunSuite(device, suite));
}

std::string AttendThroughSharedPrefix(const DraftAttentionDevice& device,
                                      const DraftAttentionTypes& types, uint64_t seed) {
  Random random(seed);
  DraftShape shape = SmallShape(random);
  shape.max_blocks = (300 + shape.block_size - 1) / shape.block_size;
  shape.max_context_len = 300;
  shape.num_rows = std::max(shape.num_rows, 2);
  shape.num_tables = std::max(shape.num_tables, shape.num_rows);
  shape.num_tokens = shape.num_rows * shape.max_new;
  const Sinks sinks(random, device.torch);
  AttentionParams layer = DrawLayer(random);
  layer.sinks = sinks.device();
  if (random.OneIn(2)) layer.softcap = static_cast<float>(random.Real(0.5, 3));
  BuilderMemory<ChainBatchArgs> host(
      [&](ArrayCarver& carver) { return CarveChainBatch(shape, carver); });
  OnDevice<ChainBatchArgs> on_device(device, host);
  const BlockTableView& table = host.args().table;
  const int32_t* const seq_lens = host.args().seq_len;
  const int64_t limit = ContextLimit(table, host.args().max_context_len);
  PagedBatch batch = ChainBatch(on_device.args());
  at::Tensor prefix = IntsOn(device, 1);
  at::Tensor scratch = at::full({2}, 0, at::TensorOptions(device.torch).dtype(at::kInt));
  const CommonPrefixArgs common = {.batch = batch,
                                   .block_size = shape.block_size,
                                   .common_prefix_len = prefix.data_ptr<int32_t>(),
                                   .scratch = static_cast<uint32_t*>(scratch.data_ptr())};
  batch.common_prefix_len = prefix.data_ptr<int32_t>();
  Attended attended(device, types, table, shape.num_tokens);
  attended.Plan(layer, batch);
  int64_t shared = 0;
  const Suite suite = {
      .fill =
          [&] {
            host.Poison();
            DrawChainBatch(random, shape, 0, host.args());
            // The first blocks of all rows that are cached are those of row 0.
            const int least = random.Pick({2 * shape.block_size, 150});
            shared = INT64_MAX;
            for (int row = 0; row < shape.num_tables; ++row) {
              auto& seq_len = const_cast<int32_t&>(seq_lens[row]);
              if (seq_len < least) {
                seq_len = static_cast<int32_t>(std::min<int64_t>(least, limit));
              }
              shared = std::min<int64_t>(shared, seq_len / shape.block_size * shape.block_size);
            }
            auto* entries = const_cast<int32_t*>(table.entries);
            for (int row = 0; row < shape.num_tables; ++row) {
              for (int64_t column = 0; column < shape.max_blocks; ++column) {
                const int owner = column < shared / shape.block_size ? 0 : row;
                entries[row * table.row_stride + column] =
                    static_cast<int32_t>(1 + owner * shape.max_blocks + column);
              }
            }
            on_device.Upload(host);
            attended.Clear();
            for (int row = 0; row < shape.num_tables; ++row) {
              const int64_t num_keys = std::min<int64_t>(limit, seq_lens[row] + shape.max_new);
              for (int64_t place = 0; place < num_keys; ++place) {
                attended.Write(SlotByDefinition(table, row, place), place < shared ? 0 : row,
                               place);
              }
            }
            attended.Upload();
            prefix.fill_(-7);
          },
      .step =
          [&] {
            device.chain(on_device.args());
            device.common_prefix(common);
            return attended.Run();
          },
      .difference =
          [&] {
            const std::vector<SeenKey> seen = ChainByDefinition(host.args(), layer.window_left);
            const int64_t found = prefix.to(at::kCPU).data_ptr<int32_t>()[0];
            if (!seen.empty() && found < shared) {
              return "prefix " + std::to_string(found) + " of " + std::to_string(shared);
            }
            const auto content_row = [&](const SeenKey& key) {
              return key.place < shared ? 0 : int64_t{key.row};
            };
            const Dense expected =
                Attend(types, seen, shape.num_tokens, sinks.host(), content_row, layer.softcap);
            return Difference(types, attended.out(), attended.lse(), expected);
          }};
  return Describe(shape, RunSuite(device, suite));
}

}  // namespace reprise
