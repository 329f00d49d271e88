#include "tests/benchmarks/device/stream_kernels.h"

namespace reprise {
namespace {

constexpr int kThreads = 512;
constexpr int kCtasPerSm = 4;  // 2,048 threads: all that an SM holds
constexpr int kUnroll = 8;     // loads in flight a thread: 128 bytes

__global__ void __launch_bounds__(kThreads)
    StreamReadKernel(const uint4* data, int64_t words, uint32_t* sink) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  uint32_t sum = 0;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + (kUnroll - 1) * stride < words; i += kUnroll * stride) {
    uint4 loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) loaded[u] = __ldcs(data + i + u * stride);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum |= loaded[u].x ^ loaded[u].y ^ loaded[u].z ^ loaded[u].w;
  }
  for (; i < words; i += stride) {
    const uint4 word = __ldcs(data + i);
    sum |= word.x ^ word.y ^ word.z ^ word.w;
  }
  // Unknown to the compiler, false for buffers of anything but one chosen pattern.
  if (sum == 0x9e3779b9u) *sink = sum;
}

__global__ void __launch_bounds__(kThreads)
    StreamCopyKernel(const uint4* from, uint4* to, int64_t words) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + (kUnroll - 1) * stride < words; i += kUnroll * stride) {
    uint4 loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) loaded[u] = __ldcs(from + i + u * stride);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) __stcs(to + i + u * stride, loaded[u]);
  }
  for (; i < words; i += stride) __stcs(to + i, __ldcs(from + i));
}

int GridSize() {
  int device = 0;
  int num_sms = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device);
  return num_sms * kCtasPerSm;
}

}  // namespace

cudaError_t LaunchStreamRead(const void* data, int64_t bytes, uint32_t* sink, cudaStream_t stream) {
  StreamReadKernel<<<GridSize(), kThreads, 0, stream>>>(static_cast<const uint4*>(data),
                                                        bytes / int64_t{sizeof(uint4)}, sink);
  return cudaGetLastError();
}

cudaError_t LaunchStreamCopy(const void* from, void* to, int64_t bytes, cudaStream_t stream) {
  StreamCopyKernel<<<GridSize(), kThreads, 0, stream>>>(
      static_cast<const uint4*>(from), static_cast<uint4*>(to), bytes / int64_t{sizeof(uint4)});
  return cudaGetLastError();
}

}  // namespace reprise
