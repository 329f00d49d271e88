#include "reprise/cache/ops/copy_blocks.h"

#include <algorithm>
#include <cstring>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"

#ifdef REPRISE_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "reprise/base/cuda_status.h"
#include "reprise/cache/ops/copy_blocks_args.h"
#endif

namespace reprise {
namespace {

absl::Status CheckStores(const BlockStore& src, const BlockStore& dst) {
  if (src.IsLike(dst)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "src and dst must have the same shape: expected ", src.extents().size(), " extents of ",
      src.bytes_per_block(), " bytes on ", src.device().str(), ", got ", dst.extents().size(),
      " of ", dst.bytes_per_block(), " on ", dst.device().str()));
}

absl::Status CheckCopies(const BlockStore& src, const BlockStore& dst,
                         absl::Span<const BlockCopy> copies) {
  for (size_t i = 0; i < copies.size(); ++i) {
    const auto check = [&](const char* side, int32_t block, const BlockStore& store) {
      if (block >= 0 && block < store.num_blocks()) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("copies[", i, "].", side, " must be a block of the store: expected 0 to ",
                       store.num_blocks() - 1, ", got ", block));
    };
    REPRISE_RETURN_IF_ERROR(check("src", copies[i].src, src));
    REPRISE_RETURN_IF_ERROR(check("dst", copies[i].dst, dst));
  }
  return absl::OkStatus();
}

void CopyOnHost(const BlockStore& src, const BlockStore& dst, absl::Span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies) {
    for (size_t e = 0; e < src.extents().size(); ++e) {
      const BlockExtent& from = src.extents()[e];
      const BlockExtent& to = dst.extents()[e];
      std::memmove(to.data + copy.dst * to.block_stride, from.data + copy.src * from.block_stride,
                   to.bytes);
    }
  }
}

#ifdef REPRISE_WITH_CUDA

CopyBlocksArgs ArgsOf(const BlockStore& src, const BlockStore& dst,
                      absl::Span<const BlockCopy> copies) {
  return {.src = src.device_extents(),
          .dst = dst.device_extents(),
          .copies = copies.data(),
          .num_copies = static_cast<int64_t>(copies.size())};
}

// At or above this extent size, the copy engine is as fast as the kernel over the bus
// (docs/performance.md).
constexpr int64_t kEngineExtentBytes = 256 * 1024;

bool IsOneMemory(const BlockStore& src, const BlockStore& dst) {
  return !src.extents().empty() && src.extents()[0].data == dst.extents()[0].data;
}

// Splits `copies` into runs of at most max_length independent copies, and calls `run` for each run.
absl::Status ForEachIndependentRun(
    absl::Span<const BlockCopy> copies, bool is_one_memory, size_t max_length,
    absl::FunctionRef<absl::Status(absl::Span<const BlockCopy>)> run) {
  absl::flat_hash_set<int32_t> read, written;
  size_t begin = 0;
  for (size_t i = 0; i < copies.size(); ++i) {
    const bool depends =
        written.contains(copies[i].dst) ||
        (is_one_memory && (written.contains(copies[i].src) || read.contains(copies[i].dst)));
    if (depends || i - begin == max_length) {
      REPRISE_RETURN_IF_ERROR(run(copies.subspan(begin, i - begin)));
      begin = i;
      read.clear();
      written.clear();
    }
    read.insert(copies[i].src);
    written.insert(copies[i].dst);
  }
  return run(copies.subspan(begin));
}

// Makes one transfer per extent and block. Blocks that are adjacent on both sides share a transfer
// if their extents have no gaps and are not in the same memory.
absl::Status CopyByEngine(const BlockStore& src, const BlockStore& dst,
                          absl::Span<const BlockCopy> copies, cudaStream_t stream) {
  for (size_t e = 0; e < src.extents().size(); ++e) {
    const BlockExtent& from = src.extents()[e];
    const BlockExtent& to = dst.extents()[e];
    // Within one memory, a run may overlap its own destinations, so its blocks are transferred one
    // at a time.
    const bool is_dense =
        !IsOneMemory(src, dst) && from.block_stride == to.bytes && to.block_stride == to.bytes;
    size_t next = 0;
    for (size_t i = 0; i < copies.size(); i = next) {
      next = i + 1;
      const auto follows = [&] {
        return copies[next].src == copies[next - 1].src + 1 &&
               copies[next].dst == copies[next - 1].dst + 1;
      };
      while (is_dense && next < copies.size() && follows()) ++next;
      REPRISE_RETURN_IF_ERROR(CudaStatus(
          cudaMemcpyAsync(to.data + copies[i].dst * to.block_stride,
                          from.data + copies[i].src * from.block_stride,
                          to.bytes * static_cast<int64_t>(next - i), cudaMemcpyDefault, stream),
          "cudaMemcpyAsync"));
    }
  }
  return absl::OkStatus();
}

absl::Status CopyOnCuda(const BlockStore& src, const BlockStore& dst,
                        absl::Span<const BlockCopy> copies, CopyPath path) {
  const c10::cuda::CUDAGuard guard(src.device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(src.device().index()).stream();
  if (path == CopyPath::kAuto) {
    const int64_t mean =
        src.bytes_per_block() / std::max<int64_t>(static_cast<int64_t>(src.extents().size()), 1);
    const bool crosses_bus = src.is_pinned() || dst.is_pinned();
    path = crosses_bus && mean >= kEngineExtentBytes ? CopyPath::kCopyEngine : CopyPath::kKernel;
  }
  // A stream runs transfers in order, so dependent copies need no separate runs.
  if (path == CopyPath::kCopyEngine) return CopyByEngine(src, dst, copies, stream);
  return ForEachIndependentRun(copies, IsOneMemory(src, dst), kMaxInlineCopies,
                               [&](absl::Span<const BlockCopy> run) {
                                 return LaunchInlineCopies(ArgsOf(src, dst, run), stream);
                               });
}

#endif  // REPRISE_WITH_CUDA

}  // namespace

absl::Status CopyBlocks(const BlockStore& src, const BlockStore& dst,
                        absl::Span<const BlockCopy> copies, [[maybe_unused]] CopyPath path) {
  REPRISE_RETURN_IF_ERROR(CheckStores(src, dst));
  REPRISE_RETURN_IF_ERROR(CheckCopies(src, dst, copies));
  if (copies.empty() || src.extents().empty()) return absl::OkStatus();
  if (src.device().is_cpu()) {
    if (path == CopyPath::kCopyEngine) {
      return absl::UnimplementedError("no copy engine: expected blocks of a GPU, got cpu");
    }
    CopyOnHost(src, dst, copies);
    return absl::OkStatus();
  }
#ifdef REPRISE_WITH_CUDA
  return CatchTorch([&] { return CopyOnCuda(src, dst, copies, path); });
#else
  return absl::UnimplementedError("this build has no CUDA: expected blocks on cpu");
#endif
}

absl::Status CopyBlocks(const BlockStore& src, const BlockStore& dst, const at::Tensor& copies) {
  REPRISE_RETURN_IF_ERROR(CheckStores(src, dst));
  return CatchTorch([&]() -> absl::Status {
    ShapeChecker dims;
    REPRISE_RETURN_IF_ERROR(dims.Check("copies", copies, {"num_copies", 2}, at::kInt));
    REPRISE_RETURN_IF_ERROR(CheckDevice("copies", copies, src.device()));
    if (!copies.is_contiguous()) {
      return absl::InvalidArgumentError("copies must be contiguous: expected strides [2, 1]");
    }
    const auto* const list = static_cast<const BlockCopy*>(copies.const_data_ptr());
    const int64_t num_copies = copies.size(0);
    if (src.device().is_cpu()) {
      for (int64_t i = 0; i < num_copies; ++i) {
        const absl::Span<const BlockCopy> one(list + i, 1);
        if (CheckCopies(src, dst, one).ok()) CopyOnHost(src, dst, one);
      }
      return absl::OkStatus();
    }
#ifdef REPRISE_WITH_CUDA
    const c10::cuda::CUDAGuard guard(src.device());
    return LaunchDeviceCopies(ArgsOf(src, dst, absl::MakeConstSpan(list, num_copies)),
                              c10::cuda::getCurrentCUDAStream(src.device().index()).stream());
#else
    return absl::UnimplementedError("this build has no CUDA: expected blocks on cpu");
#endif
  });
}

}  // namespace reprise
