#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "reprise/attention/merge/common_prefix.h"
#include "reprise/attention/merge/merge_states.h"
#include "reprise/attention/metadata/batch_gather.h"
#include "reprise/attention/speculation/accept_drafts.h"
#include "reprise/attention/speculation/advance_step.h"
#include "reprise/attention/speculation/draft_rows.h"
#include "reprise/attention/speculation/tree_batch.h"
#include "reprise/attention/testing/draft_generator.h"
#include "reprise/attention/testing/speculation/accept_cases.h"
#include "reprise/attention/testing/speculation/draft_cases.h"
#include "reprise/base/testing/builder_memory.h"
#include "tests/benchmarks/device/metadata_case.h"

namespace reprise {
namespace {

// Rows of 1,990..2,010 tokens in blocks of 16, over a table of 1,024 blocks per sequence; all rows
// are live.
DraftShape Shape(int num_rows, int max_new) {
  return {.num_rows = num_rows,
          .num_tables = num_rows,
          .block_size = 16,
          .max_blocks = 1024,
          .max_new = max_new,
          .num_tokens = num_rows * max_new,
          .max_context_len = 1024 * 16};
}

template <typename T>
void Fill(const T* array, int64_t count, T value) {
  std::fill_n(const_cast<T*>(array), count, value);
}

void FillTable(const DraftShape& shape, const BlockTableView& table) {
  auto* entries = const_cast<int32_t*>(table.entries);
  for (int64_t row = 0; row < shape.num_tables; ++row) {
    for (int64_t column = 0; column < shape.max_blocks; ++column) {
      entries[row * table.row_stride + column] =
          static_cast<int32_t>(1 + row * shape.max_blocks + column);
    }
  }
}

void FillRows(const DraftShape& shape, const BlockTableView& table, const int32_t* slots,
              const int32_t* seq_len) {
  FillTable(shape, table);
  for (int r = 0; r < shape.num_rows; ++r) {
    const_cast<int32_t*>(slots)[r] = r;
    const_cast<int32_t*>(seq_len)[r] = 1990 + r % 20;
  }
}

// A builder's arrays on the device, filled on the host.
template <typename Args, typename Carve, typename FillArgs, typename Launch>
MetadataCase CaseOf(std::string name, Carve carve, FillArgs fill, Launch launch) {
  BuilderMemory<Args> host(carve);
  std::fill_n(host.base(), host.num_bytes(), std::byte{0});
  fill(host.args());
  const at::Tensor bytes =
      at::from_blob(host.base(), {host.num_bytes()}, at::TensorOptions().dtype(at::kByte))
          .to(at::kCUDA);
  const Args args = host.ArgsAt(reinterpret_cast<std::byte*>(bytes.data_ptr()));
  return {std::move(name),
          [bytes, args, launch](cudaStream_t stream) { return ErrorOf(launch(args, stream)); }};
}

MetadataCase ChainCase(int num_rows, int query_len) {
  const DraftShape shape = Shape(num_rows, query_len);
  return CaseOf<BatchGatherArgs>(
      "batch_gather, chains of " + std::to_string(query_len),
      [=](ArrayCarver& carver) { return CarveChainBatch(shape, carver); },
      [=](const BatchGatherArgs& args) {
        FillRows(shape, args.table, args.table_row, args.table_seq_lens);
        Fill(args.query_lens, num_rows, query_len - args.num_verified);
      },
      LaunchBatchGather);
}

MetadataCase TreeCase(int num_rows, int num_nodes, bool is_line) {
  const DraftShape shape = Shape(num_rows, num_nodes);
  return CaseOf<TreeBatchArgs>(
      "tree_batch, " + std::to_string(num_nodes) + (is_line ? " nodes in a line" : " nodes"),
      [=](ArrayCarver& carver) { return CarveTreeBatch(shape, carver); },
      [=](const TreeBatchArgs& args) {
        FillRows(shape, args.table, args.slots, args.seq_len);
        Fill(args.num_nodes, num_rows, num_nodes);
        for (int64_t i = 0; i < int64_t{num_rows} * num_nodes; ++i) {
          const int node = static_cast<int>(i % num_nodes);
          const_cast<int32_t*>(args.parents)[i] =
              node == 0 ? -1 : (is_line ? node - 1 : (node - 1) / 2);
        }
      },
      LaunchTreeBatch);
}

// The third pass of a draft model. A tree has 8 nodes per level.
MetadataCase DraftRowsCase(int num_rows, bool is_tree) {
  DraftRowsShape shape = {.num_rows = num_rows,
                          .num_slots = num_rows,
                          .max_drafts = 5,
                          .max_blocks = 1024,
                          .block_size = 16,
                          .num_blocks = num_rows * 1024 + 1,
                          .pass = 3};
  if (is_tree) {
    shape.level_starts = {0, 1, 9, 17, 25, 33};
    shape.max_drafts = 32;
  }
  return CaseOf<DraftRowsArgs>(
      is_tree ? "draft_rows, level 3 of 8 nodes" : "draft_rows, pass 3 of a chain",
      [=](ArrayCarver& carver) { return CarveDraftRows(shape, carver); },
      [=](const DraftRowsArgs& args) {
        for (int64_t i = 0; i < int64_t{num_rows} * args.rows.table.row_stride; ++i) {
          const_cast<int32_t*>(args.rows.table.entries)[i] = static_cast<int32_t>(1 + i % 1024);
        }
        Fill(args.step.context_lens, num_rows, 2000);
        Fill(args.step.num_proposed, num_rows, shape.max_drafts);
        for (int r = 0; r < num_rows; ++r) {
          const_cast<int32_t*>(args.step.slot_of_row)[r] = r;
          const_cast<int32_t*>(args.step.query_start_loc)[r] = r * (1 + shape.max_drafts);
          for (int node = 0; is_tree && node <= shape.max_drafts; ++node) {
            const_cast<int32_t*>(args.step.parents.nodes)[r * (1 + shape.max_drafts) + node] =
                node == 0 ? -1 : std::max(0, node - 8);
          }
        }
      },
      LaunchDraftRows);
}

// Drafts of a binary tree, or a chain, of which three are accepted.
MetadataCase AcceptCase(int num_rows, int num_drafts, bool is_tree) {
  const AcceptShape shape = {.num_rows = num_rows,
                             .num_slots = num_rows,
                             .max_drafts = num_drafts,
                             .max_positions = 2100,
                             .has_trees = is_tree};
  const int num_nodes = 1 + num_drafts;
  return CaseOf<AcceptDraftsArgs>(
      "accept_drafts, 3 of " + std::to_string(num_drafts) + (is_tree ? " in a tree" : ""),
      [=](ArrayCarver& carver) { return CarveAcceptDrafts(shape, carver); },
      [=](const AcceptDraftsArgs& args) {
        Fill(args.context_lens, num_rows, 2000);
        Fill(args.chosen, args.num_logits, 7);
        for (int r = 0; r <= num_rows; ++r) {
          const_cast<int32_t*>(args.query_start_loc)[r] = r * num_nodes;
        }
        for (int r = 0; r < num_rows; ++r) {
          const_cast<int32_t*>(args.slot_of_row)[r] = r;
          const_cast<int32_t*>(args.first_verified)[r] = num_rows + r * num_drafts;
          for (int node = 0; node < num_nodes; ++node) {
            // Right are the last children of the binary tree, or the first drafts of the chain.
            const bool is_right =
                is_tree ? node == 2 || node == 6 || node == 14 : node >= 1 && node <= 3;
            const int64_t token = int64_t{r} * num_nodes + node;
            const_cast<int32_t*>(args.token_ids)[token] = is_right ? 7 : 8;
            if (!is_tree) continue;
            const_cast<int32_t*>(args.parents.nodes)[token] = node == 0 ? -1 : (node - 1) / 2;
            const_cast<int64_t*>(args.slot_mapping)[token] = token;
          }
        }
      },
      LaunchAcceptDrafts);
}

MetadataCase AdvanceCase(int num_rows) {
  const DraftShape shape = Shape(num_rows, 1);
  return CaseOf<AdvanceStepArgs>(
      "advance_step", [=](ArrayCarver& carver) { return CarveAdvanceStep(shape, carver); },
      [=](const AdvanceStepArgs& args) {
        FillRows(shape, args.table, args.table_row, args.seq_lens);
      },
      LaunchAdvanceStep);
}

// All rows share `shared` tokens.
MetadataCase PrefixCase(int num_rows, int shared) {
  const DraftShape shape = Shape(num_rows, 1);
  struct Prefix {
    CommonPrefixArgs args;
    BlockTableView table;
  };
  return CaseOf<Prefix>(
      "common_prefix, " + std::to_string(shared) + " tokens",
      [=](ArrayCarver& carver) {
        const BatchGatherArgs chain = CarveChainBatch(shape, carver);
        Prefix prefix;
        prefix.table = chain.table;
        prefix.args.batch = {.query_start_loc = chain.arrays.query_start_loc,
                             .seq_lens = chain.arrays.seq_lens,
                             .table_row = chain.arrays.table_row,
                             .block_table = chain.table.entries,
                             .block_table_stride = chain.table.row_stride,
                             .num_rows = num_rows,
                             .num_tables = num_rows,
                             .max_blocks = chain.table.max_blocks};
        prefix.args.block_size = 16;
        prefix.args.common_prefix_len = chain.arrays.token_ids;
        prefix.args.scratch = carver.Take<uint32_t>("scratch", 2);
        return prefix;
      },
      [=](const Prefix& prefix) {
        FillRows(shape, prefix.table, prefix.args.batch.table_row, prefix.args.batch.seq_lens);
        auto* entries = const_cast<int32_t*>(prefix.table.entries);
        for (int64_t row = 0; row < num_rows; ++row) {
          const_cast<int32_t*>(prefix.args.batch.seq_lens)[row] = shared + 100;
          for (int column = 0; column < shared / 16; ++column) {
            entries[row * prefix.table.row_stride + column] = 1 + column;
          }
        }
        for (int r = 0; r <= num_rows; ++r) {
          const_cast<int32_t*>(prefix.args.batch.query_start_loc)[r] = r;
        }
      },
      [](const Prefix& prefix, cudaStream_t stream) {
        return LaunchCommonPrefix(prefix.args, stream);
      });
}

MetadataCase MergeCase(int num_rows, int num_parts) {
  constexpr int kHeads = 32;
  constexpr int kDim = 128;
  const at::TensorOptions floats = at::TensorOptions(at::kCUDA).dtype(at::kFloat);
  const at::Tensor parts = at::empty({num_parts + 1, num_rows, kHeads, kDim}, floats).zero_();
  const at::Tensor lses = at::empty({num_parts + 1, num_rows, kHeads}, floats).zero_();
  MergeStatesArgs args;
  for (int part = 0; part < num_parts; ++part) {
    args.part_out[part] = parts[part].data_ptr();
    args.part_lse[part] = lses[part].data_ptr<float>();
  }
  args.num_parts = num_parts;
  args.part = {.token_stride = kHeads * kDim, .head_stride = kDim};
  args.part_lse_view = TokensByHeads(nullptr, kHeads);
  args.out = args.part;
  args.out.data = parts[num_parts].data_ptr();
  args.lse = TokensByHeads(lses[num_parts].data_ptr<float>(), kHeads);
  args.num_tokens = num_rows;
  args.num_heads = kHeads;
  args.head_dim = kDim;
  return {"merge_states, " + std::to_string(num_parts) + " parts of 32 x 128",
          [parts, lses, args](cudaStream_t stream) {
            return ErrorOf(LaunchMergeStates(args, stream));
          }};
}

}  // namespace

std::vector<MetadataCase> DraftMetadataCases(int num_rows) {
  return {
      AdvanceCase(num_rows),          ChainCase(num_rows, 1),        ChainCase(num_rows, 5),
      TreeCase(num_rows, 16, false),  TreeCase(num_rows, 64, false), TreeCase(num_rows, 64, true),
      DraftRowsCase(num_rows, false), DraftRowsCase(num_rows, true), AcceptCase(num_rows, 15, true),
      AcceptCase(num_rows, 4, false), PrefixCase(num_rows, 1024),    PrefixCase(num_rows, 8192),
      MergeCase(num_rows, 2),         MergeCase(num_rows, 4)};
}

}  // namespace reprise
