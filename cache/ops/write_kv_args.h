// Arguments of a KV write as plain values, and the device launchers. Callers use WriteKv()
// (write_kv.h).

#ifndef REPRISE_CACHE_OPS_WRITE_KV_ARGS_H_
#define REPRISE_CACHE_OPS_WRITE_KV_ARGS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/check.h"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/ops/kv_tokens.h"
#include "reprise/cache/storage/kv_layer.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

struct WriteKvArgs {
  KvLayer kv = {};
  ConstKvTokens k = {};
  ConstKvTokens v = {};
  // The dtype of k and v. If it is fp8, it must be the cache's dtype, and the cache's scales must
  // be 1.
  DType dtype = DType::kFloat32;
  const int64_t* slot_mapping = nullptr;  // [num_tokens]
  int64_t num_tokens = 0;
  int num_sides = 2;  // 2: K and V; 1: only K
};

// Errors: InvalidArgument naming the field. Does not read arrays.
inline absl::Status CheckWriteKv(const WriteKvArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckKvArgs(args));
  REPRISE_RETURN_IF_ERROR(CheckHasNoRows("kv.k_scale", args.kv.k_scale));
  REPRISE_RETURN_IF_ERROR(CheckHasNoRows("kv.v_scale", args.kv.v_scale));
  if (args.kv.k_scale.data == nullptr) {
    REPRISE_RETURN_IF_ERROR(CheckPositive("kv.k_scale", args.kv.k_scale.value));
  }
  if (args.kv.v_scale.data == nullptr) {
    REPRISE_RETURN_IF_ERROR(CheckPositive("kv.v_scale", args.kv.v_scale.value));
  }
  if (IsFp8(args.dtype)) {
    if (args.dtype != args.kv.dtype) {
      return absl::InvalidArgumentError(absl::StrCat(
          "k and v must have the fp8 type of the cache: expected ",
          std::string(DTypeName(args.kv.dtype)), ", got ", std::string(DTypeName(args.dtype))));
    }
    REPRISE_RETURN_IF_ERROR(CheckIsOne("kv.k_scale, for keys in fp8", args.kv.k_scale));
    REPRISE_RETURN_IF_ERROR(CheckIsOne("kv.v_scale, for values in fp8", args.kv.v_scale));
  }
  return args.num_tokens == 0 ? absl::OkStatus() : CheckGiven("slot_mapping", args.slot_mapping);
}

// Enqueues the write on `stream`. All pointers are device pointers. Tokens with a slot outside the
// cache are not written. No synchronisation and no allocation: may be captured. No launch if
// args.num_tokens is 0. Errors: as CheckWriteKv(); Unimplemented for float64; Internal if CUDA
// fails.
absl::Status LaunchWriteKv(const WriteKvArgs& args, CUstream_st* stream);

// Part of LaunchWriteKv(), for caches in which the elements of adjacent tokens are contiguous: the
// K-packed layout, with 16 bytes of K per token and one element of V per token
// (cache/storage/kv_layer.h).

// Whether the layout, strides and addresses allow LaunchWriteKvColumns().
bool CanWriteKvColumns(const WriteKvArgs& args);

// REQUIRES: CheckWriteKv(args) is OK, CanWriteKvColumns(args), args.num_tokens > 0.
absl::Status LaunchWriteKvColumns(const WriteKvArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_CACHE_OPS_WRITE_KV_ARGS_H_
