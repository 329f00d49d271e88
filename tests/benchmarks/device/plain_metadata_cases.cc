#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <glog/logging.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "reprise/attention/metadata/batch_gather.h"
#include "reprise/attention/metadata/batch_tables.h"
#include "reprise/attention/metadata/cross_batch.h"
#include "reprise/attention/metadata/local_virtual_batch.h"
#include "reprise/attention/metadata/ragged_gather.h"
#include "reprise/cache/tables/convert_tables.h"
#include "tests/benchmarks/device/metadata_case.h"

namespace reprise {
namespace {

constexpr int kBlockSize = 16;
constexpr int kMaxBlocks = 1024;
constexpr int kChunkSize = 8192;

// Rows of query_len queries each at the end of seq_len keys; its arrays and room for results.
class Rows {
 public:
  Rows(int num_rows, int query_len, int seq_len)
      : num_rows_(num_rows), num_tokens_(num_rows * query_len), query_len_(query_len) {
    table_row_ = at::arange(num_rows, Ints());
    query_lens_ = at::full({num_rows}, query_len, Ints());
    seq_lens_ = at::full({num_rows}, seq_len, Ints());
    query_start_loc_ = at::arange(0, num_tokens_ + 1, query_len, Ints());
    table_ = at::arange(1, 1 + static_cast<int64_t>(num_rows) * kMaxBlocks, Ints());
    slots_ = at::empty({num_tokens_}, Ints().dtype(at::kLong));
  }

  static at::TensorOptions Ints() { return at::TensorOptions(at::kCUDA).dtype(at::kInt); }

  // Memory for `count` results.
  int32_t* Out(int64_t count) {
    memory_.push_back(at::empty({count + 1}, Ints()));
    return memory_.back().data_ptr<int32_t>();
  }

  int64_t* slots() const { return slots_.data_ptr<int64_t>(); }
  const int32_t* query_lens() const { return query_lens_.data_ptr<int32_t>(); }
  const int32_t* seq_lens() const { return seq_lens_.data_ptr<int32_t>(); }
  int num_rows() const { return num_rows_; }
  int num_tokens() const { return num_tokens_; }

  BlockTableView Table() const {
    return {.entries = table_.data_ptr<int32_t>(),
            .row_stride = kMaxBlocks,
            .num_tables = num_rows_,
            .max_blocks = kMaxBlocks,
            .block_size = kBlockSize,
            .num_blocks = 1 + num_rows_ * kMaxBlocks};
  }

  PagedBatch Batch() const {
    return {.query_start_loc = query_start_loc_.data_ptr<int32_t>(),
            .seq_lens = seq_lens(),
            .table_row = table_row_.data_ptr<int32_t>(),
            .block_table = table_.data_ptr<int32_t>(),
            .block_table_stride = kMaxBlocks,
            .num_rows = num_rows_,
            .num_tokens = num_tokens_,
            .max_query_len = query_len_,
            .max_seq_len = kMaxBlocks * kBlockSize,
            .num_tables = num_rows_,
            .max_blocks = kMaxBlocks};
  }

 private:
  int num_rows_;
  int num_tokens_;
  int query_len_;
  at::Tensor table_row_, query_lens_, seq_lens_, query_start_loc_, table_, slots_;
  std::vector<at::Tensor> memory_;
};

using SharedRows = std::shared_ptr<Rows>;

MetadataCase GatherCase(const std::string& shape, const SharedRows& rows) {
  const BatchGatherArgs args = {.table_row = rows->Batch().table_row,
                                .query_lens = rows->query_lens(),
                                .seq_lens = rows->seq_lens(),
                                .table = rows->Table(),
                                .num_rows = rows->num_rows(),
                                .num_tokens = rows->num_tokens(),
                                .max_query_len = rows->Batch().max_query_len,
                                .arrays = {.positions = rows->Out(rows->num_tokens()),
                                           .slot_mapping = rows->slots(),
                                           .query_start_loc = rows->Out(rows->num_rows() + 1),
                                           .seq_lens = rows->Out(rows->num_rows()),
                                           .table_row = rows->Out(rows->num_rows())},
                                .num_faults = rows->Out(1)};
  return {"batch_gather, " + shape,
          [rows, args](cudaStream_t stream) { return ErrorOf(LaunchBatchGather(args, stream)); }};
}

LocalVirtualBatchArgs LocalArgs(const SharedRows& rows) {
  const int max_rows = MaxLocalRows(rows->num_rows(), rows->num_tokens(), kChunkSize);
  return {.batch = rows->Batch(),
          .chunk_size = kChunkSize,
          .buffers = {.query_start_loc = rows->Out(max_rows + 1),
                      .seq_lens = rows->Out(max_rows),
                      .table_row = rows->Out(max_rows),
                      .key_start = rows->Out(max_rows),
                      .max_rows = max_rows}};
}

MetadataCase LocalCase(const std::string& shape, const SharedRows& rows) {
  const LocalVirtualBatchArgs args = LocalArgs(rows);
  return {"local_virtual_batch, " + shape, [rows, args](cudaStream_t stream) {
            return ErrorOf(LaunchLocalVirtualBatch(args, stream));
          }};
}

MetadataCase LocalTableCase(const std::string& shape, const SharedRows& rows) {
  const LocalVirtualBatchArgs rows_args = LocalArgs(rows);
  const PagedBatch local = LocalVirtualBatch(rows_args);
  static_cast<void>(LaunchLocalVirtualBatch(rows_args, nullptr));
  const int width = kChunkSize / kBlockSize;
  ConvertTablesArgs args = ConversionOf(local, kBlockSize);
  args.out = {.table = {.entries = rows->Out(int64_t{local.num_rows} * width),
                        .row_stride = width,
                        .num_tables = local.num_rows,
                        .max_blocks = width,
                        .block_size = kBlockSize},
              .seq_lens = rows->Out(local.num_rows)};
  return {"local tables, " + shape,
          [rows, args](cudaStream_t stream) { return ErrorOf(LaunchConvertTables(args, stream)); }};
}

MetadataCase PackedCase(const std::string& shape, const SharedRows& rows) {
  const int max_indices = rows->num_rows() * kMaxBlocks;
  ConvertTablesArgs args = ConversionOf(rows->Batch(), kBlockSize);
  args.out = {.packed = {.block_indptr = rows->Out(rows->num_rows() + 1),
                         .block_indices = rows->Out(max_indices),
                         .last_block_len = rows->Out(rows->num_rows()),
                         .num_rows = rows->num_rows(),
                         .max_indices = max_indices,
                         .block_size = kBlockSize},
              .key_start_loc = rows->Out(rows->num_rows() + 1),
              .num_faults = rows->Out(1)};
  return {"batch_tables (packed), " + shape,
          [rows, args](cudaStream_t stream) { return ErrorOf(LaunchConvertTables(args, stream)); }};
}

MetadataCase CrossCase(const std::string& shape, const SharedRows& rows) {
  const CrossBatchArgs args = {.rows = rows->Batch(),
                               .encoder_lens = rows->seq_lens(),
                               .table = rows->Table(),
                               .max_encoder_len = kMaxBlocks * kBlockSize,
                               .seq_lens = rows->Out(rows->num_rows())};
  return {"cross_batch, " + shape,
          [rows, args](cudaStream_t stream) { return ErrorOf(LaunchCrossBatch(args, stream)); }};
}

MetadataCase RaggedCase(const std::string& shape, const SharedRows& rows) {
  const RaggedGatherArgs args = {.lens = rows->query_lens(),
                                 .num_rows = rows->num_rows(),
                                 .num_tokens = rows->num_tokens(),
                                 .max_len = rows->num_tokens(),
                                 .query_start_loc = rows->Out(rows->num_rows() + 1),
                                 .key_start_loc = rows->Out(rows->num_rows() + 1),
                                 .positions = rows->Out(rows->num_tokens()),
                                 .slot_mapping = rows->slots(),
                                 .num_faults = rows->Out(1)};
  return {"ragged_gather, " + shape,
          [rows, args](cudaStream_t stream) { return ErrorOf(LaunchRaggedGather(args, stream)); }};
}

}  // namespace

std::vector<MetadataCase> PlainMetadataCases(int num_rows) {
  const auto decode = std::make_shared<Rows>(num_rows, 1, 2000);
  const auto verify = std::make_shared<Rows>(num_rows, 5, 8194);  // over a chunk's border
  const auto prefill = std::make_shared<Rows>(4, 2048, 9000);
  return {GatherCase("decode", decode),     GatherCase("verify 5", verify),
          GatherCase("prefill", prefill),   LocalCase("decode", decode),
          LocalCase("verify 5", verify),    LocalCase("prefill", prefill),
          LocalTableCase("decode", decode), PackedCase("decode", decode),
          CrossCase("decode", decode),      RaggedCase("5 tokens a row", verify)};
}

}  // namespace reprise
