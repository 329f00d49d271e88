// Converts e4m3 to float16 by bit operations, for cards without an instruction for it (before
// compute capability 8.9). The result is 2^-8 times the value, which float16 holds exactly. float16
// has one exponent bit more than e4m3, and a bias of 15 instead of 7.
//
//   e4m3 in the high byte   s eeee mmm 0000 0000
//   float16                 s 0 eeee mmm 000 0000    NaN, all of eeee mmm: s 1 1111 111 111 1111
//
// No dependencies.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_FP8_HALVES_H_
#define REPRISE_ATTENTION_CUDA_GENERAL_FP8_HALVES_H_

#include <cstdint>

#include "reprise/base/host_device.h"

namespace reprise {

// Converts two elements, which are in the high bytes of the halves. Ignores the low bytes of
// `elements`.
REPRISE_HOST_DEVICE constexpr uint32_t ScaledHalvesOfE4M3(uint32_t elements) {
  const uint32_t magnitude = elements >> 1 & 0x3f803f80u;
  // Bit 0x4000 is set in a half that is NaN; no other magnitude carries into this bit.
  const uint32_t is_nan = (magnitude + 0x00800080u) & 0x40004000u;
  const uint32_t nan = (is_nan << 1) - (is_nan >> 14);
  return magnitude | (elements & 0x80008000u) | nan;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_FP8_HALVES_H_
