#include "tests/benchmarks/device/kernel_class.h"

namespace reprise {
namespace {

struct Pattern {
  std::string_view part;
  KernelClass kernel_class;
};

// The first that occurs in the name decides: our own kernels, then the families of cuBLASLt.
constexpr Pattern kPatterns[] = {
    {"TileSchedule", KernelClass::kTileSchedule},
    {"Refill", KernelClass::kRefill},
    {"LocalVirtual", KernelClass::kTileSchedule},
    {"Attention", KernelClass::kAttention},
    {"Rotary", KernelClass::kRotaryWrite},
    {"WriteKv", KernelClass::kRotaryWrite},
    {"RmsNorm", KernelClass::kNorm},
    {"ElementwiseKernel", KernelClass::kActivation},
    {"GatherRows", KernelClass::kGather},
    {"Sample", KernelClass::kSampling},
    {"Shard", KernelClass::kSampling},
    {"Argmax", KernelClass::kSampling},
    {"gemm", KernelClass::kProducts},
    {"gemv", KernelClass::kProducts},
    {"nvjet", KernelClass::kProducts},
    {"splitK", KernelClass::kProducts},
    {"cublas", KernelClass::kProducts},
    {"cutlass", KernelClass::kProducts},
    {"SkinnyLinear", KernelClass::kProducts},
    {"TileLinear", KernelClass::kProducts},
    {"Fp8Linear", KernelClass::kProducts},
    {"Dequantise", KernelClass::kProducts},
    {"nccl", KernelClass::kCollectives},
    {"all_reduce", KernelClass::kCollectives},
    {"PushAllReduce", KernelClass::kCollectives},
    {"RankRows", KernelClass::kTileSchedule},
    {"MergeStates", KernelClass::kAttention},
};

}  // namespace

std::string_view KernelClassName(KernelClass kernel_class) {
  switch (kernel_class) {
    case KernelClass::kProducts:
      return "products";
    case KernelClass::kAttention:
      return "attention";
    case KernelClass::kTileSchedule:
      return "tile_schedule";
    case KernelClass::kRotaryWrite:
      return "rotary_write";
    case KernelClass::kNorm:
      return "norm";
    case KernelClass::kActivation:
      return "activation";
    case KernelClass::kGather:
      return "gather";
    case KernelClass::kRefill:
      return "refill";
    case KernelClass::kSampling:
      return "sampling";
    case KernelClass::kCollectives:
      return "collectives";
    case KernelClass::kOther:
      return "other";
  }
  return "unknown";
}

KernelClass ClassOfKernel(std::string_view name) {
  for (const Pattern& pattern : kPatterns) {
    if (name.find(pattern.part) != std::string_view::npos) return pattern.kernel_class;
  }
  return KernelClass::kOther;
}

}  // namespace reprise
