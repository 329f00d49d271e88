#include "reprise/attention/testing/draft_attention.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "reprise/attention/metadata/chain_batch.h"
#include "reprise/attention/metadata/context_parallel.h"
#include "reprise/attention/metadata/cross_batch.h"
#include "reprise/attention/metadata/local_virtual_batch.h"
#include "reprise/attention/speculation/draft_steps.h"
#include "reprise/attention/speculation/tree_batch.h"
#include "reprise/attention/testing/attended.h"
#include "reprise/attention/testing/draft_definitions.h"
#include "reprise/attention/testing/draft_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/testing/builder_memory.h"

namespace reprise {
namespace {

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

}  // namespace reprise
