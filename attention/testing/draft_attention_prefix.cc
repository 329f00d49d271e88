#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "reprise/attention/metadata/batch_gather.h"
#include "reprise/attention/testing/attended.h"
#include "reprise/attention/testing/draft_attention.h"
#include "reprise/attention/testing/draft_definitions.h"
#include "reprise/attention/testing/draft_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/testing/builder_memory.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {
namespace {

// `max_len` is the maximum number of keys per row.
DraftShape PrefixShape(Random& random, int max_len) {
  DraftShape shape = SmallShape(random);
  shape.max_blocks = NumBlocksFor(max_len, shape.block_size);
  shape.max_context_len = max_len;
  shape.num_rows = std::max(shape.num_rows, 2);
  shape.num_tables = std::max(shape.num_tables, shape.num_rows);
  shape.num_tokens = shape.num_rows * shape.max_new;
  return shape;
}

// Chains that share their first blocks with table row 0.
class PrefixedChains {
 public:
  PrefixedChains(const DraftAttentionDevice& device, const DraftShape& shape, Random& random)
      : shape_(shape),
        random_(random),
        host_([&](ArrayCarver& carver) { return CarveChainBatch(shape, carver); }),
        on_device_(device, host_) {}

  // Writes all keys to each of `attended`.
  void Fill(const std::vector<Attended*>& attended) {
    const BlockTableView& table = host_.args().table;
    const int32_t* const seq_lens = host_.args().table_seq_lens;
    const int64_t limit = LimitByDefinition(table, host_.args().max_seq_len);
    host_.Poison();
    DrawChainBatch(random_, shape_, 0, host_.args());
    const int least =
        random_.Pick({2 * shape_.block_size, static_cast<int>(shape_.max_context_len / 2)});
    shared_ = INT64_MAX;
    for (int row = 0; row < shape_.num_tables; ++row) {
      auto& seq_len = const_cast<int32_t&>(seq_lens[row]);
      if (seq_len < least) seq_len = static_cast<int32_t>(std::min<int64_t>(least, limit));
      shared_ = std::min<int64_t>(shared_, seq_len / shape_.block_size * shape_.block_size);
    }
    auto* entries = const_cast<int32_t*>(table.entries);
    for (int row = 0; row < shape_.num_tables; ++row) {
      for (int64_t column = 0; column < shape_.max_blocks; ++column) {
        const int owner = column < shared_ / shape_.block_size ? 0 : row;
        entries[row * table.row_stride + column] =
            static_cast<int32_t>(1 + owner * shape_.max_blocks + column);
      }
    }
    on_device_.Upload(host_);
    for (Attended* const each : attended) {
      each->Clear();
      for (int row = 0; row < shape_.num_tables; ++row) {
        const int64_t num_keys = std::min<int64_t>(limit, seq_lens[row] + shape_.max_new);
        for (int64_t place = 0; place < num_keys; ++place) {
          each->Write(SlotByDefinition(table, row, place), place < shared_ ? 0 : row, place);
        }
      }
      each->Upload();
    }
  }

  Dense Expected(const DraftAttentionTypes& types, const AttentionParams& layer,
                 const float* host_sinks) {
    const auto content_row = [&](const SeenKey& key) {
      return key.place < shared_ ? 0 : int64_t{key.row};
    };
    return Attend(types, ChainByDefinition(host_.args(), layer.window_left), shape_.num_tokens,
                  host_sinks, content_row, layer.softcap);
  }

  bool HasQueries() { return !ChainByDefinition(host_.args(), {}).empty(); }
  // Number of keys that all rows share.
  int64_t shared() const { return shared_; }
  const BlockTableView& table() { return host_.args().table; }
  BatchGatherArgs& on_device() { return on_device_.args(); }

 private:
  DraftShape shape_;
  Random& random_;
  BuilderMemory<BatchGatherArgs> host_;
  OnDevice<BatchGatherArgs> on_device_;
  int64_t shared_ = 0;
};

AttentionParams DrawPrefixLayer(Random& random) {
  AttentionParams layer = DrawLayer(random);
  if (random.OneIn(2)) layer.softcap = static_cast<float>(random.Real(0.5, 3));
  return layer;
}

}  // namespace

std::string AttendThroughSharedPrefix(const DraftAttentionDevice& device,
                                      const DraftAttentionTypes& types, uint64_t seed) {
  Random random(seed);
  const DraftShape shape = PrefixShape(random, 300);
  const Sinks sinks(random, device.torch);
  AttentionParams layer = DrawPrefixLayer(random);
  layer.sinks = sinks.device();
  PrefixedChains chains(device, shape, random);
  PagedBatch batch = GatherBatch(chains.on_device());
  at::Tensor prefix = IntsOn(device, 1);
  at::Tensor scratch = at::full({2}, 0, at::TensorOptions(device.torch).dtype(at::kInt));
  const CommonPrefixArgs common = {.batch = batch,
                                   .block_size = shape.block_size,
                                   .common_prefix_len = prefix.data_ptr<int32_t>(),
                                   .scratch = static_cast<uint32_t*>(scratch.data_ptr())};
  batch.common_prefix_len = prefix.data_ptr<int32_t>();
  Attended attended(device, types, chains.table(), shape.num_tokens);
  attended.Plan(layer, batch);
  const Suite suite = {.fill =
                           [&] {
                             chains.Fill({&attended});
                             prefix.fill_(-7);
                           },
                       .step =
                           [&] {
                             device.gather(chains.on_device());
                             device.common_prefix(common);
                             return attended.Run();
                           },
                       .difference =
                           [&] {
                             const int64_t found = prefix.to(at::kCPU).data_ptr<int32_t>()[0];
                             if (chains.HasQueries() && found < chains.shared()) {
                               return "prefix " + std::to_string(found) + " of " +
                                      std::to_string(chains.shared());
                             }
                             return Difference(types, attended.out(), attended.lse(),
                                               chains.Expected(types, layer, sinks.host()));
                           }};
  return Describe(shape, RunSuite(device, suite));
}

std::string AttendThroughPrefixApart(const DraftAttentionDevice& device,
                                     const DraftAttentionTypes& types, uint64_t seed) {
  Random random(seed);
  // Some seeds use rows that are long enough to be split even if a schedule limits the number of
  // splits per row.
  const DraftShape shape = PrefixShape(random, seed % 6 == 0 ? 2600 : 300);
  const Sinks sinks(random, device.torch);
  const AttentionParams layer = DrawPrefixLayer(random);
  PrefixedChains chains(device, shape, random);
  const BatchArrays& arrays = chains.on_device().arrays;
  const at::TensorOptions ints = at::TensorOptions(device.torch).dtype(at::kInt);
  const auto over = [&](int32_t* data, int64_t size) { return at::from_blob(data, {size}, ints); };
  const at::Tensor loc = over(arrays.query_start_loc, shape.num_rows + 1);
  const at::Tensor lens = over(arrays.seq_lens, shape.num_rows);

  // One row with all queries over the prefix. The end of a window follows from the positions.
  at::Tensor prefix = at::full({1}, 0, ints), prefix_loc = at::full({2}, 0, ints);
  at::Tensor zero = at::full({1}, 0, ints);
  Attended over_prefix(device, types, chains.table(), shape.num_tokens);
  PagedBatch prefix_batch = GatherBatch(chains.on_device());
  prefix_batch.query_start_loc = prefix_loc.data_ptr<int32_t>();
  prefix_batch.seq_lens = prefix.data_ptr<int32_t>();
  prefix_batch.table_row = zero.data_ptr<int32_t>();
  prefix_batch.query_positions = arrays.positions;
  prefix_batch.causal = false;
  prefix_batch.num_rows = 1;
  prefix_batch.max_query_len = shape.num_tokens;
  over_prefix.Plan(layer, prefix_batch);

  // The rows over their other keys.
  at::Tensor rest = at::full({shape.num_rows}, 0, ints), start = at::full_like(rest, 0);
  Attended over_rest(device, types, chains.table(), shape.num_tokens);
  PagedBatch rest_batch = GatherBatch(chains.on_device());
  rest_batch.seq_lens = rest.data_ptr<int32_t>();
  rest_batch.key_start = start.data_ptr<int32_t>();
  over_rest.Plan(layer, rest_batch);

  at::Tensor out = at::empty_like(over_rest.out()), lse = at::empty_like(over_rest.lse());
  MergeStatesArgs merge;
  merge.num_parts = 2;
  merge.part_out[0] = over_prefix.out().data_ptr();
  merge.part_lse[0] = over_prefix.lse().data_ptr<float>();
  merge.part_out[1] = over_rest.out().data_ptr();
  merge.part_lse[1] = over_rest.lse().data_ptr<float>();
  MergeInto(merge, out, lse);
  merge.sinks = sinks.device();
  const Suite suite = {
      .fill =
          [&] {
            chains.Fill({&over_prefix, &over_rest});
            prefix.fill_(chains.shared());
            rest.fill_(-7);
            start.fill_(-7);
            prefix_loc.narrow(0, 1, 1).fill_(-7);
            out.fill_(kNan);
            lse.fill_(kNan);
          },
      .step =
          [&] {
            device.gather(chains.on_device());
            // Uses kernels, like builders: copies would add other types of graph nodes.
            at::Tensor prefix_end = prefix_loc.narrow(0, 1, 1);
            at::sub_out(prefix_end, loc.narrow(0, shape.num_rows, 1), zero);
            at::sub_out(start, prefix.expand({shape.num_rows}), zero);
            at::sub_out(rest, lens, start);
            rest.clamp_min_(0);
            absl::Status status = over_prefix.Run();
            status.Update(over_rest.Run());
            device.merge(merge);
            return status;
          },
      .difference =
          [&] { return Difference(types, out, lse, chains.Expected(types, layer, sinks.host())); }};
  return Describe(shape, RunSuite(device, suite));
}

}  // namespace reprise
