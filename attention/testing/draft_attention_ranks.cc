#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "reprise/attention/metadata/batch_gather.h"
#include "reprise/attention/metadata/context_parallel.h"
#include "reprise/attention/testing/attended.h"
#include "reprise/attention/testing/draft_attention.h"
#include "reprise/attention/testing/draft_definitions.h"
#include "reprise/attention/testing/draft_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/testing/builder_memory.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

// The attention among a step's new tokens, which are in tensors and not in a cache.
class NewTokens {
 public:
  // `loc`: [num_rows + 1] on the device, the first token of each row.
  NewTokens(const DraftAttentionDevice& device, const DraftAttentionTypes& types,
            const DraftShape& shape, const AttentionParams& layer, const int32_t* loc)
      : types_(types),
        q_(QueriesOf(device, types, shape.num_tokens)),
        k_(at::empty({shape.num_tokens, kKvHeads, kDim}, Of(device.torch, types.q))),
        v_(at::empty_like(k_)),
        out_(at::empty({shape.num_tokens, kHeads, kDim}, Floats(device.torch))),
        lse_(at::empty({shape.num_tokens, kHeads}, Floats(device.torch))) {
    const RaggedBatch batch = {.query_start_loc = loc,
                               .key_start_loc = loc,
                               .num_rows = shape.num_rows,
                               .num_tokens = shape.num_tokens,
                               .num_keys = shape.num_tokens,
                               .max_query_len = shape.max_new,
                               .max_seq_len = shape.max_new};
    plan_ = device.plan_ragged(layer, batch, q_, k_, v_, out_, lse_);
  }
  NewTokens(const NewTokens&) = delete;
  NewTokens& operator=(const NewTokens&) = delete;

  // Takes each token's row and place from the pair of the token with itself in `seen`. Rounds the
  // values like a cache.
  void Fill(const std::vector<SeenKey>& seen) {
    at::Tensor k = at::full(k_.sizes(), kNan, Floats(at::kCPU));
    at::Tensor v = at::full(k_.sizes(), kNan, Floats(at::kCPU));
    for (const SeenKey& key : seen) {
      if (key.key_position != key.query_position) continue;
      for (int i = 0; i < kKvHeads * kDim; ++i) {
        const int64_t at = int64_t{key.token} * kKvHeads * kDim + i;
        k.mutable_data_ptr<float>()[at] = static_cast<float>(Content(kKey, key.row, key.place, i));
        v.mutable_data_ptr<float>()[at] =
            static_cast<float>(Content(kValue, key.row, key.place, i));
      }
    }
    const auto stored = [&](const at::Tensor& values) {
      return values.to(ToScalarType(types_.kv)).to(k_.scalar_type());
    };
    k_.copy_(stored(k));
    v_.copy_(stored(v));
    out_.fill_(kNan);
    lse_.fill_(kNan);
    if (plan_.poison) plan_.poison();
  }

  absl::Status Run() { return plan_.run(); }

  at::Tensor& out() { return out_; }
  at::Tensor& lse() { return lse_; }

 private:
  DraftAttentionTypes types_;
  at::Tensor q_, k_, v_, out_, lse_;
  AttendPlan plan_;
};

// `part` selects the keys that each rank attends to. If it is kContext, the step's keys form a
// separate part.
std::string MergeRanks(const DraftAttentionDevice& device, const DraftAttentionTypes& types,
                       KeyPart part, uint64_t seed) {
  Random random(seed);
  const DraftShape shape = SmallShape(random);
  const int world = random.Int(2, 4);
  const int interleave = random.Pick({1, 2, 16});
  const AttentionParams layer = DrawLayer(random);
  const Sinks sinks(random, device.torch);

  // Lengths are global. Each rank has separate tables; here they name the same blocks.
  BuilderMemory<BatchGatherArgs> host([&](ArrayCarver& carver) {
    BatchGatherArgs args = CarveChainBatch(shape, carver);
    args.key_positions = {.rank = 0, .world = world, .interleave = interleave};
    args.part = part;
    return args;
  });
  const BlockTableView& table = host.args().table;
  const int32_t* const seq_lens = host.args().table_seq_lens;
  const int64_t limit =
      LimitByDefinition(table, host.args().max_seq_len, host.args().key_positions);
  std::deque<OnDevice<BatchGatherArgs>> on_device;
  std::deque<Attended> ranks;
  MergeStatesArgs merge;
  for (int rank = 0; rank < world; ++rank) {
    on_device.emplace_back(device, host).args().key_positions.rank = rank;
    Attended& attended = ranks.emplace_back(device, types, table, shape.num_tokens);
    attended.Plan(layer, GatherBatch(on_device[rank].args()));
    merge.part_out[rank] = attended.out().data_ptr();
    merge.part_lse[rank] = attended.lse().data_ptr<float>();
  }
  std::optional<NewTokens> new_tokens;
  if (part == KeyPart::kContext) {
    new_tokens.emplace(device, types, shape, layer, on_device[0].args().arrays.query_start_loc);
    merge.part_out[world] = new_tokens->out().data_ptr();
    merge.part_lse[world] = new_tokens->lse().data_ptr<float>();
  }
  at::Tensor out = at::full_like(ranks[0].out(), kNan);
  at::Tensor lse = at::full_like(ranks[0].lse(), kNan);
  MergeInto(merge, out, lse);
  merge.num_parts = world + (new_tokens ? 1 : 0);
  merge.sinks = sinks.device();

  const int num_new = part == KeyPart::kContext ? 0 : shape.max_new;  // new keys in the cache
  // Computes the keys of a rank by counting, without the builder's functions.
  const auto write_share = [&](int rank) {
    const auto share = [&](int64_t num_tokens) {
      int64_t held = 0;
      for (int64_t p = 0; p < num_tokens; ++p) held += p / interleave % world == rank;
      return held;
    };
    ranks[rank].Clear();
    for (int row = 0; row < shape.num_tables; ++row) {
      const int64_t num_keys = share(std::min<int64_t>(limit, seq_lens[row] + num_new));
      for (int64_t local = 0; local < num_keys; ++local) {
        if (local / shape.block_size * shape.block_size >= seq_lens[row] + shape.max_new) {
          break;  // the table has no block for this key and must not be read
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
                               // Some ranks get no keys.
                               if (random.OneIn(4)) seq_len = std::min(seq_len, random.Int(0, 2));
                             }
                             for (int rank = 0; rank < world; ++rank) {
                               on_device[rank].Upload(host);
                               write_share(rank);
                             }
                             if (new_tokens) new_tokens->Fill(ChainByDefinition(host.args(), {}));
                             out.fill_(kNan);
                             lse.fill_(kNan);
                           },
                       .step =
                           [&] {
                             absl::Status status;
                             for (int rank = 0; rank < world; ++rank) {
                               device.gather(on_device[rank].args());
                               status.Update(ranks[rank].Run());
                             }
                             if (new_tokens) status.Update(new_tokens->Run());
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

}  // namespace

std::string AttendThroughRanks(const DraftAttentionDevice& device, const DraftAttentionTypes& types,
                               uint64_t seed) {
  return MergeRanks(device, types, KeyPart::kAll, seed);
}

std::string AttendThroughContextsOfRanks(const DraftAttentionDevice& device,
                                         const DraftAttentionTypes& types, uint64_t seed) {
  return MergeRanks(device, types, KeyPart::kContext, seed);
}

}  // namespace reprise
