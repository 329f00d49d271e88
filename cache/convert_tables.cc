#include "cache/convert_tables.h"

#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

#ifdef REPRISE_WITH_CUDA
#include "base/cuda_status.h"
#include "cache/convert_tables_kernel.h"
#endif

namespace reprise {
namespace {

struct Size {
  const char* name;
  int64_t value;
};

struct Array {
  const char* name;
  const void* data;
  int64_t size;
};

absl::Status Check(int block_size, std::initializer_list<Size> sizes,
                   std::initializer_list<Array> arrays) {
  if (block_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_size must be positive: expected at least 1, got ", block_size));
  }
  for (const Size& size : sizes) {
    if (size.value >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(size.name, " must not be negative: expected at least 0, got ", size.value));
  }
  for (const Array& array : arrays) {
    if (array.data != nullptr || array.size == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(array.name, " is missing: expected ", array.size, " cells, got null"));
  }
  return absl::OkStatus();
}

}  // namespace

#ifdef REPRISE_WITH_CUDA
#define REPRISE_RUN(call, name) return CudaStatus(call(params, stream), name)
#else
#define REPRISE_RUN(call, name)                                     \
  (void)stream;                                                     \
  return absl::UnimplementedError(                                  \
      "this build has no CUDA, so it does not convert tables on a " \
      "GPU")
#endif

absl::Status LaunchPackBlockTable(const PackTableParams& params, CUstream_st* stream) {
  const int64_t cells = int64_t{params.num_tables} * params.max_blocks;
  REPRISE_RETURN_IF_ERROR(Check(params.block_size,
                                {{"num_tables", params.num_tables},
                                 {"max_blocks", params.max_blocks},
                                 {"num_rows", params.num_rows},
                                 {"max_indices", params.max_indices},
                                 {"row_stride", params.row_stride}},
                                {{"block_table", params.block_table, cells},
                                 {"seq_lens", params.seq_lens, params.num_rows},
                                 {"block_indptr", params.block_indptr, params.num_rows + 1},
                                 {"block_indices", params.block_indices, params.max_indices},
                                 {"last_block_len", params.last_block_len, params.num_rows}}));
  REPRISE_RUN(RunPackTable, "packing a block table");
}

absl::Status LaunchUnpackBlockTable(const UnpackTableParams& params, CUstream_st* stream) {
  const int64_t cells = int64_t{params.num_rows} * params.max_blocks;
  REPRISE_RETURN_IF_ERROR(Check(params.block_size,
                                {{"max_blocks", params.max_blocks},
                                 {"num_rows", params.num_rows},
                                 {"max_indices", params.max_indices},
                                 {"row_stride", params.row_stride}},
                                {{"block_table", params.block_table, cells},
                                 {"seq_lens", params.seq_lens, params.num_rows},
                                 {"block_indptr", params.block_indptr, params.num_rows},
                                 {"block_indices", params.block_indices, params.max_indices},
                                 {"last_block_len", params.last_block_len, params.num_rows}}));
  REPRISE_RUN(RunUnpackTable, "unpacking a block table");
}

absl::Status LaunchTokensToBlocks(const TokensToBlocksParams& params, CUstream_st* stream) {
  const int64_t cells = int64_t{params.num_requests} * params.max_tokens;
  REPRISE_RETURN_IF_ERROR(
      Check(params.block_size,
            {{"num_requests", params.num_requests},
             {"max_tokens", params.max_tokens},
             {"num_rows", params.num_rows},
             {"max_blocks", params.max_blocks},
             {"slots_stride", params.slots_stride},
             {"row_stride", params.row_stride}},
            {{"slots", params.slots, cells},
             {"lens", params.lens, params.num_rows},
             {"block_table", params.block_table, int64_t{params.num_rows} * params.max_blocks}}));
  REPRISE_RUN(RunTokensToBlocks, "making block tables of token tables");
}

absl::Status LaunchBlocksToTokens(const BlocksToTokensParams& params, CUstream_st* stream) {
  const int64_t cells = int64_t{params.num_rows} * params.max_blocks;
  REPRISE_RETURN_IF_ERROR(
      Check(params.block_size,
            {{"max_tokens", params.max_tokens},
             {"num_rows", params.num_rows},
             {"max_blocks", params.max_blocks},
             {"slots_stride", params.slots_stride},
             {"row_stride", params.row_stride}},
            {{"block_table", params.block_table, cells},
             {"seq_lens", params.seq_lens, params.num_rows},
             {"slots", params.slots, int64_t{params.num_rows} * params.max_tokens}}));
  REPRISE_RUN(RunBlocksToTokens, "making token tables of block tables");
}

#undef REPRISE_RUN

}  // namespace reprise
