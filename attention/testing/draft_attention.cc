#include "attention/testing/draft_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "attention/metadata/chain_batch.h"
#include "attention/metadata/context_parallel.h"
#include "attention/speculation/draft_steps.h"
#include "attention/speculation/tree_batch.h"
#include "attention/testing/draft_definitions.h"
#include "attention/testing/draft_generator.h"
#include "attention/testing/random.h"
#include "base/testing/builder_memory.h"

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

// The same number for the same names, in (-1, 1), exact in float32.
double Content(uint64_t kind, uint64_t row, uint64_t place, uint64_t at) {
  uint64_t bits = (kind * 1000003 + row) * 1000003 + place;
  bits = (bits * 1000003 + at) * 0x9e3779b97f4a7c15;
  bits ^= bits >> 29;
  bits *= 0xbf58476d1ce4e5b9;
  return static_cast<double>(bits >> 48) / 32768.0 - 1.0;
}

enum Kind : uint64_t { kQuery, kKey, kValue };

// Attention by definition: q of token t is Content(kQuery, 0, t), keys and values are those of
// (row, place).
struct Dense {
  std::vector<double> out;  // [num_tokens, kHeads, kDim]
  std::vector<double> lse;  // [num_tokens, kHeads]
};

Dense Attend(const std::vector<SeenKey>& seen, int num_tokens, const float* sinks,
             const std::function<int64_t(const SeenKey&)>& content_row,
             std::optional<float> softcap = {}) {
  Dense dense = {std::vector<double>(int64_t{num_tokens} * kHeads * kDim, 0.0),
                 std::vector<double>(int64_t{num_tokens} * kHeads, -kInf)};
  std::vector<std::vector<const SeenKey*>> of_token(num_tokens);
  for (const SeenKey& key : seen) of_token[key.token].push_back(&key);
  std::vector<double> scores;
  for (int t = 0; t < num_tokens; ++t) {
    if (of_token[t].empty()) continue;
    for (int h = 0; h < kHeads; ++h) {
      const int kv_head = h / (kHeads / kKvHeads);
      double largest = sinks ? sinks[h] : -kInf;
      scores.clear();
      for (const SeenKey* key : of_token[t]) {
        double score = 0;
        for (int d = 0; d < kDim; ++d) {
          score += Content(kQuery, 0, t, h * kDim + d) *
                   Content(kKey, content_row(*key), key->place, kv_head * kDim + d);
        }
        score /= std::sqrt(static_cast<double>(kDim));
        scores.push_back(softcap ? *softcap * std::tanh(score / *softcap) : score);
        largest = std::max(largest, scores.back());
      }
      double total = sinks ? std::exp(sinks[h] - largest) : 0;
      for (double& score : scores) total += score = std::exp(score - largest);
      double* out = &dense.out[(int64_t{t} * kHeads + h) * kDim];
      for (size_t i = 0; i < scores.size(); ++i) {
        const SeenKey& key = *of_token[t][i];
        for (int d = 0; d < kDim; ++d) {
          out[d] +=
              scores[i] / total * Content(kValue, content_row(key), key.place, kv_head * kDim + d);
        }
      }
      dense.lse[int64_t{t} * kHeads + h] = largest + std::log(total);
    }
  }
  return dense;
}

int64_t OwnRow(const SeenKey& key) { return key.row; }

// q, the cache and the results on the device, and the layer.
class Attended {
 public:
  Attended(const DraftAttentionDevice& device, const BlockTableView& table, int num_tokens)
      : device_(device),
        block_size_(table.block_size),
        k_(at::full({table.num_blocks, table.block_size, kKvHeads, kDim}, kNan, Floats(at::kCPU))),
        v_(at::full({table.num_blocks, table.block_size, kKvHeads, kDim}, kNan, Floats(at::kCPU))),
        q_(at::empty({num_tokens, kHeads, kDim}, Floats(at::kCPU))),
        out_(at::full({num_tokens, kHeads, kDim}, kNan, Floats(device.torch))),
        lse_(at::full({num_tokens, kHeads}, kNan, Floats(device.torch))) {
    for (int t = 0; t < num_tokens; ++t) {
      for (int i = 0; i < kHeads * kDim; ++i) {
        q_.mutable_data_ptr<float>()[int64_t{t} * kHeads * kDim + i] =
            static_cast<float>(Content(kQuery, 0, t, i));
      }
    }
  }

  void Write(int64_t slot, int64_t row, int64_t place) {
    for (int i = 0; i < kKvHeads * kDim; ++i) {
      const int64_t at = slot * kKvHeads * kDim + i;
      k_.mutable_data_ptr<float>()[at] = static_cast<float>(Content(kKey, row, place, i));
      v_.mutable_data_ptr<float>()[at] = static_cast<float>(Content(kValue, row, place, i));
    }
  }

  absl::Status Run(const AttentionParams& layer, const PagedBatch& batch) {
    k_ = k_.to(device_.torch);
    v_ = v_.to(device_.torch);
    q_ = q_.to(device_.torch);
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
                        .num_blocks = static_cast<int>(k_.size(0)),
                        .block_size = block_size_,
                        .num_kv_heads = kKvHeads,
                        .head_dim_qk = kDim,
                        .head_dim_v = kDim};
    return device_.attend(layer, batch, q_, kv, out_, lse_);
  }

  at::Tensor& out() { return out_; }
  at::Tensor& lse() { return lse_; }

 private:
  const DraftAttentionDevice& device_;
  int block_size_;
  at::Tensor k_, v_, q_, out_, lse_;
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

// Empty if they agree up to a few float32 roundings.
std::string Difference(const at::Tensor& out, const at::Tensor& lse, const Dense& expected) {
  const at::Tensor got = out.to(at::kCPU).contiguous();
  const at::Tensor got_lse = lse.to(at::kCPU).contiguous();
  std::ostringstream text;
  for (size_t i = 0; i < expected.out.size(); ++i) {
    const float value = got.const_data_ptr<float>()[i];
    if (std::abs(value - expected.out[i]) <= 2e-5) continue;
    text << "out of token " << i / (kHeads * kDim) << ": expected " << expected.out[i] << ", got "
         << value;
    return text.str();
  }
  for (size_t i = 0; i < expected.lse.size(); ++i) {
    const double value = got_lse.const_data_ptr<float>()[i];
    if (value == expected.lse[i] || std::abs(value - expected.lse[i]) <= 2e-5) continue;
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
      : bytes_(at::from_blob(host.base(), {host.num_bytes()}, at::TensorOptions().dtype(at::kByte))
                   .clone()
                   .to(device.torch)),
        args_(host.ArgsAt(reinterpret_cast<std::byte*>(bytes_.data_ptr()))) {}

  Args& args() { return args_; }

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

}  // namespace

std::string AttendThroughChain(const DraftAttentionDevice& device, uint64_t seed) {
  Random random(seed);
  const DraftShape shape = SmallShape(random);
  BuilderMemory<ChainBatchArgs> host(
      [&](ArrayCarver& carver) { return CarveChainBatch(shape, carver); });
  DrawChainBatch(random, shape, 0, host.args());
  const AttentionParams layer = DrawLayer(random);
  OnDevice<ChainBatchArgs> on_device(device, host);
  device.chain(on_device.args());
  Attended attended(device, host.args().table, shape.num_tokens);
  WriteSequences(attended, host.args().table, host.args().seq_len, shape.max_new);
  const absl::Status status = attended.Run(layer, ChainBatch(on_device.args()));
  if (!status.ok()) return status.ToString();
  const Dense expected =
      Attend(ChainByDefinition(host.args(), layer.window_left), shape.num_tokens, nullptr, OwnRow);
  return Describe(shape, Difference(attended.out(), attended.lse(), expected));
}

std::string AttendThroughTree(const DraftAttentionDevice& device, uint64_t seed) {
  Random random(seed);
  DraftShape shape = DrawDraftShape(random);  // up to 64 nodes
  shape.num_rows = std::min(shape.num_rows, 3);
  BuilderMemory<TreeBatchArgs> host(
      [&](ArrayCarver& carver) { return CarveTreeBatch(shape, carver); });
  DrawTreeBatch(random, shape, 0, host.args());
  const AttentionParams layer = DrawLayer(random);
  OnDevice<TreeBatchArgs> on_device(device, host);
  device.tree(on_device.args());
  Attended attended(device, host.args().table, shape.num_tokens);
  WriteSequences(attended, host.args().table, host.args().seq_len, shape.max_new);
  const absl::Status status = attended.Run(layer, TreeBatch(on_device.args()));
  if (!status.ok()) return status.ToString();
  const Dense expected =
      Attend(TreeByDefinition(host.args(), layer.window_left), shape.num_tokens, nullptr, OwnRow);
  return Describe(shape, Difference(attended.out(), attended.lse(), expected));
}

std::string AttendThroughDraftLevels(const DraftAttentionDevice& device, uint64_t seed) {
  Random random(seed);
  const DraftShape shape = DrawDraftShape(random);
  BuilderMemory<DraftLevelArgs> host(
      [&](ArrayCarver& carver) { return CarveDraftLevel(shape, 0, carver); });
  const AttentionParams layer = DrawLayer(random);
  std::vector<std::vector<int32_t>> trees(shape.num_rows);
  std::optional<OnDevice<DraftLevelArgs>> on_device;
  for (int step = 0; step < shape.num_steps; ++step) {
    DraftLevelArgs& args = host.args();
    args.step = step;
    DrawDraftLevel(random, shape, 0, args);
    for (int r = 0; r < shape.num_rows; ++r) {
      trees[r].insert(trees[r].end(), args.parents + r * shape.width,
                      args.parents + (r + 1) * shape.width);
    }
    // The host form keeps the state; the device makes the level that attention runs on.
    on_device.emplace(device, host);
    on_device->args().step = step;
    device.draft_level(on_device->args());
    DraftLevelOnHost(args);
  }
  const int num_tokens = shape.num_rows * shape.width;
  Attended attended(device, host.args().rows.table, num_tokens);
  WriteSequences(attended, host.args().rows.table, host.args().rows.seq_len,
                 int64_t{shape.num_steps} * shape.width);
  const absl::Status status = attended.Run(layer, DraftLevelBatch(on_device->args()));
  if (!status.ok()) return status.ToString();
  const Dense expected = Attend(DraftLevelByDefinition(host.args(), trees, layer.window_left),
                                num_tokens, nullptr, OwnRow);
  return Describe(shape, Difference(attended.out(), attended.lse(), expected));
}

std::string AttendThroughRanks(const DraftAttentionDevice& device, uint64_t seed) {
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
  DrawChainBatch(random, shape, 0, host.args());
  const int64_t limit =
      ContextLimit(host.args().table, host.args().max_context_len, host.args().key_positions);
  for (int row = 0; row < shape.num_tables; ++row) {
    auto& seq_len = const_cast<int32_t&>(host.args().seq_len[row]);
    seq_len = static_cast<int32_t>(std::min<int64_t>(seq_len, limit));
    if (random.OneIn(4)) seq_len = std::min(seq_len, random.Int(0, 2));  // empty shares
  }
  const auto share = [&](int64_t num_tokens, int rank) {
    return LocalLen(num_tokens, {.rank = rank, .world = world, .interleave = interleave});
  };

  MergeStatesArgs merge;
  std::vector<Attended> ranks;
  ranks.reserve(world);
  for (int rank = 0; rank < world; ++rank) {
    OnDevice<ChainBatchArgs> on_device(device, host);
    on_device.args().key_positions.rank = rank;
    device.chain(on_device.args());
    Attended& attended = ranks.emplace_back(device, host.args().table, shape.num_tokens);
    for (int row = 0; row < shape.num_tables; ++row) {
      const int64_t num_keys =
          share(std::min<int64_t>(limit, host.args().seq_len[row] + shape.max_new), rank);
      for (int64_t local = 0; local < num_keys; ++local) {
        if (local / shape.block_size * shape.block_size >=
            host.args().seq_len[row] + shape.max_new) {
          break;  // the table has no block there and must not be read
        }
        // By counting in runs, not by the builder's functions.
        const int64_t place = (local / interleave * world + rank) * interleave + local % interleave;
        attended.Write(SlotByDefinition(host.args().table, row, local), row, place);
      }
    }
    const absl::Status status = attended.Run(layer, ChainBatch(on_device.args()));
    if (!status.ok()) return status.ToString();
    merge.part_out[rank] = attended.out().data_ptr();
    merge.part_lse[rank] = attended.lse().data_ptr<float>();
  }
  at::Tensor out = at::full_like(ranks[0].out(), kNan);
  at::Tensor lse = at::full_like(ranks[0].lse(), kNan);
  MergeInto(merge, out, lse);
  merge.num_parts = world;
  merge.sinks = sinks.device();
  device.merge(merge);
  const Dense expected = Attend(ChainByDefinition(host.args(), layer.window_left), shape.num_tokens,
                                sinks.host(), OwnRow);
  return Describe(shape, Difference(out, lse, expected));
}

std::string AttendThroughSharedPrefix(const DraftAttentionDevice& device, uint64_t seed) {
  Random random(seed);
  DraftShape shape = SmallShape(random);
  shape.max_blocks = (300 + shape.block_size - 1) / shape.block_size;
  shape.max_context_len = 300;
  shape.num_rows = std::max(shape.num_rows, 2);
  shape.num_tables = std::max(shape.num_tables, shape.num_rows);
  shape.num_tokens = shape.num_rows * shape.max_new;
  BuilderMemory<ChainBatchArgs> host(
      [&](ArrayCarver& carver) { return CarveChainBatch(shape, carver); });
  DrawChainBatch(random, shape, 0, host.args());
  const Sinks sinks(random, device.torch);
  AttentionParams layer = DrawLayer(random);
  layer.sinks = sinks.device();
  if (random.OneIn(2)) layer.softcap = static_cast<float>(random.Real(0.5, 3));
  // The first blocks of all rows that are cached are those of row 0.
  const BlockTableView& table = host.args().table;
  const int64_t limit = ContextLimit(table, host.args().max_context_len);
  const int least = random.Pick({2 * shape.block_size, 150});
  int64_t shared = INT64_MAX;
  for (int row = 0; row < shape.num_tables; ++row) {
    auto& seq_len = const_cast<int32_t&>(host.args().seq_len[row]);
    if (seq_len < least) seq_len = static_cast<int32_t>(std::min<int64_t>(least, limit));
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
  OnDevice<ChainBatchArgs> on_device(device, host);
  device.chain(on_device.args());
  PagedBatch batch = ChainBatch(on_device.args());
  at::Tensor prefix = at::full({1}, -7, at::TensorOptions(device.torch).dtype(at::kInt));
  at::Tensor scratch = at::full({2}, 0, at::TensorOptions(device.torch).dtype(at::kInt));
  device.common_prefix({.batch = batch,
                        .block_size = shape.block_size,
                        .common_prefix_len = prefix.data_ptr<int32_t>(),
                        .scratch = static_cast<uint32_t*>(scratch.data_ptr())});
  batch.common_prefix_len = prefix.data_ptr<int32_t>();
  const auto content_row = [shared](const SeenKey& key) {
    return key.place < shared ? 0 : int64_t{key.row};
  };
  Attended attended(device, table, shape.num_tokens);
  for (int row = 0; row < shape.num_tables; ++row) {
    const int64_t num_keys = std::min<int64_t>(limit, host.args().seq_len[row] + shape.max_new);
    for (int64_t place = 0; place < num_keys; ++place) {
      attended.Write(SlotByDefinition(table, row, place), place < shared ? 0 : row, place);
    }
  }
  const std::vector<SeenKey> seen = ChainByDefinition(host.args(), layer.window_left);
  const int64_t found = prefix.to(at::kCPU).data_ptr<int32_t>()[0];
  if (!seen.empty() && found < shared) {
    return Describe(shape, "prefix " + std::to_string(found) + " of " + std::to_string(shared));
  }
  const absl::Status status = attended.Run(layer, batch);
  if (!status.ok()) return status.ToString();
  const Dense expected = Attend(seen, shape.num_tokens, sinks.host(), content_row, layer.softcap);
  return Describe(shape, Difference(attended.out(), attended.lse(), expected));
}

}  // namespace reprise
