// The ways from one form of block table to another, on the device: padded, packed (CSR) and token
// tables. What each form is, and the same on the host: cache/block_table_formats.h,
// cache/token_table.h.
//
//   // Inside a captured step, for a kernel of somebody else's that wants CSR:
//   REPRISE_RETURN_IF_ERROR(LaunchPackBlockTable({.block_table = table, ...}, stream));
//
// One launch each on the given stream, no synchronisation and no allocation: they may be captured,
// and replays read new contents of the same arrays. All pointers are the device's.
//
// The device cannot refuse. Lengths are clipped to the table's width, requests and table rows that
// do not exist are empty rows, and what an output has no room for is left out, such that what is
// there is consistent. Block ids are copied as they are: whoever reads the cache checks them.
//
// Errors: InvalidArgument for a size that is negative, a block_size below 1 or an array that is
// missing; Unimplemented in a build without CUDA; Internal if a launch fails.

#ifndef CACHE_CONVERT_TABLES_H_
#define CACHE_CONVERT_TABLES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "cache/convert_tables_params.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

absl::Status LaunchPackBlockTable(const PackTableParams& params, CUstream_st* stream);
absl::Status LaunchUnpackBlockTable(const UnpackTableParams& params, CUstream_st* stream);
absl::Status LaunchTokensToBlocks(const TokensToBlocksParams& params, CUstream_st* stream);
absl::Status LaunchBlocksToTokens(const BlocksToTokensParams& params, CUstream_st* stream);

}  // namespace reprise

#endif  // CACHE_CONVERT_TABLES_H_
