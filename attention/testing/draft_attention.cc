#include "reprise/attention/testing/draft_attention.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "reprise/attention/metadata/batch_gather.h"
#include "reprise/attention/metadata/context_parallel.h"
#include "reprise/attention/metadata/cross_batch.h"
#include "reprise/attention/metadata/local_virtual_batch.h"
#include "reprise/attention/speculation/draft_rows.h"
#include "reprise/attention/speculation/tree_batch.h"
#include "reprise/attention/testing/attended.h"
#include "reprise/attention/testing/draft_definitions.h"
#include "reprise/attention/testing/draft_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/testing/speculation/draft_cases.h"
#include "reprise/base/testing/builder_memory.h"

namespace reprise {
namespace {

// Chains with draft verification: the attention of their rows, or of rows that another builder
// derives from them.
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
    WriteSequences(attended, host_.args().table, host_.args().table_seq_lens, shape_.max_new);
    attended.Upload();
  }

  BatchGatherArgs& host() { return host_.args(); }
  BatchGatherArgs& on_device() { return on_device_.args(); }

 private:
  DraftShape shape_;
  Random& random_;
  BuilderMemory<BatchGatherArgs> host_;
  OnDevice<BatchGatherArgs> on_device_;
};

}  // namespace

std::string AttendThroughChain(const DraftAttentionDevice& device, const DraftAttentionTypes& types,
                               uint64_t seed) {
  Random random(seed);
  const DraftShape shape = SmallShape(random);
  const AttentionParams layer = DrawLayer(random);
  Chains chains(device, shape, random);
  Attended attended(device, types, chains.host().table, shape.num_tokens);
  attended.Plan(layer, GatherBatch(chains.on_device()));
  const Suite suite = {.fill = [&] { chains.Fill(attended); },
                       .step =
                           [&] {
                             device.gather(chains.on_device());
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
  const LocalVirtualBatchArgs local = {.batch = GatherBatch(chains.on_device()),
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
                             device.gather(chains.on_device());
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
                             device.gather(on_device.args().decoder);
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

namespace {

// The passes of a draft model over one step, and the tokens that each pass chooses.
struct DraftPasses {
  DraftRowsArgs rows;
  const int32_t* chosen = nullptr;  // [num_passes, num_logits]
};

// Few short sequences without shared blocks.
DraftRowsShape SmallTreeShape(Random& random) {
  DraftRowsShape shape = DrawDraftTreeShape(random);
  while (shape.max_drafts > 20) shape = DrawDraftTreeShape(random);
  shape.tree.clear();
  shape.pass = 0;
  shape.num_rows = random.Int(1, 5);
  shape.num_slots = shape.num_rows + 1;
  shape.max_blocks = (40 + random.Int(0, 60)) / shape.block_size + 1;
  shape.num_blocks = shape.num_slots * shape.max_blocks + 1;
  shape.groups = {{}};
  return shape;
}

DraftPasses CarvePasses(const DraftRowsShape& shape, ArrayCarver& carver) {
  DraftPasses passes;
  passes.rows = CarveDraftRows(shape, carver);
  const int64_t count = int64_t{shape.num_passes()} * passes.rows.num_logits;
  passes.chosen = carver.Take<int32_t>("chosen of passes", count);
  return passes;
}

DraftRowsArgs PassAt(const DraftRowsShape& shape, const DraftPasses& passes, int pass) {
  DraftRowsArgs args = passes.rows;
  args.pass = pass;
  args.rows.num_tokens = NumDraftTokens(pass, shape.num_rows, shape.max_drafts, shape.width(pass));
  args.level.first_before = pass == 0 ? 0 : shape.level_starts[pass - 1];
  args.level.first = shape.level_starts[pass];
  args.level.end = shape.level_starts[pass + 1];
  args.chosen = passes.chosen + int64_t{pass} * args.num_logits;
  return args;
}

void DrawPasses(Random& random, const DraftRowsShape& shape, DraftPasses& passes) {
  DrawDraftRows(random, shape, {}, passes.rows);
  const BlockTableView& table = passes.rows.rows.table;
  std::vector<int32_t> blocks(shape.num_blocks - 1);
  std::iota(blocks.begin(), blocks.end(), 1);
  random.Shuffle(blocks);
  for (int slot = 0; slot < shape.num_slots; ++slot) {
    std::copy_n(blocks.begin() + int64_t{slot} * shape.max_blocks, shape.max_blocks,
                const_cast<int32_t*>(table.entries) + slot * table.row_stride);
  }
  const int64_t count = int64_t{shape.num_passes()} * passes.rows.num_logits;
  for (int64_t i = 0; i < count; ++i) {
    const_cast<int32_t*>(passes.chosen)[i] = random.OneIn(20) ? -1 : random.Int(0, 99);
  }
}

// Returns, for each slot, the number of keys before the drafts of its row.
std::vector<int32_t> KeysBeforeDrafts(const DraftRowsShape& shape, const DraftedBatch& step) {
  std::vector<int32_t> num_keys(shape.num_slots);
  for (int r = 0; r < shape.num_rows; ++r) {
    if (step.num_proposed[r] > 0) num_keys[step.slot_of_row[r]] = step.context_lens[r];
  }
  return num_keys;
}

}  // namespace

std::string AttendThroughDraftLevels(const DraftAttentionDevice& device,
                                     const DraftAttentionTypes& types, uint64_t seed) {
  Random random(seed);
  const DraftRowsShape shape = SmallTreeShape(random);
  const AttentionParams layer = DrawLayer(random);
  BuilderMemory<DraftPasses> host([&](ArrayCarver& carver) { return CarvePasses(shape, carver); });
  OnDevice<DraftPasses> on_device(device, host);
  const BlockTableView& table = host.args().rows.rows.table;
  std::deque<Attended> attended;
  std::vector<Dense> expected;
  for (int pass = 0; pass < shape.num_passes(); ++pass) {
    const DraftRowsArgs args = PassAt(shape, on_device.args(), pass);
    attended.emplace_back(device, types, table, args.rows.num_tokens)
        .Plan(layer, DraftRowsBatch(args));
  }
  const Suite suite = {
      .fill =
          [&] {
            host.Poison();
            DrawPasses(random, shape, host.args());
            on_device.Upload(host);
            const std::vector<int32_t> num_keys = KeysBeforeDrafts(shape, host.args().rows.step);
            expected.clear();
            for (int pass = 0; pass < shape.num_passes(); ++pass) {
              const DraftRowsArgs args = PassAt(shape, host.args(), pass);
              expected.push_back(Attend(types, DraftPassByDefinition(args, layer.window_left),
                                        args.rows.num_tokens, nullptr, OwnRow));
              attended[pass].Clear();
              WriteSequences(attended[pass], table, num_keys.data(), 1 + shape.max_drafts);
              attended[pass].Upload();
            }
          },
      .step =
          [&] {
            absl::Status status;
            for (int pass = 0; pass < shape.num_passes(); ++pass) {
              device.draft_rows(PassAt(shape, on_device.args(), pass));
              status.Update(attended[pass].Run());
            }
            return status;
          },
      .difference = [&]() -> std::string {
        for (int pass = 0; pass < shape.num_passes(); ++pass) {
          const std::string text =
              Difference(types, attended[pass].out(), attended[pass].lse(), expected[pass]);
          if (!text.empty()) return "pass " + std::to_string(pass) + ": " + text;
        }
        return "";
      }};
  const std::string difference = RunSuite(device, suite);
  if (difference.empty()) return difference;
  std::ostringstream text;
  text << difference << " (" << shape << ")";
  return text.str();
}

}  // namespace reprise
