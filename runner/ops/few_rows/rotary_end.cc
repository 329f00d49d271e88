#include "runner/ops/few_rows/rotary_end.h"

namespace reprise {
namespace {

constexpr int kAligned = 8;  // elements of 16 bits: of 16 bytes

bool IsAligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// Whether the dims of each head follow one another, at multiples of 16 bytes.
bool HasWholeHeads(const KvView& view, int head_dim) {
  return IsAligned(view.data) && view.dim_chunk >= head_dim && view.block_stride % kAligned == 0 &&
         view.token_stride % kAligned == 0 && view.head_stride % kAligned == 0;
}

bool IsOne(const Scale& scale) { return scale.data == nullptr && scale.value == 1.0f; }

// Whether `next` follows `heads` in each row.
bool Follows(const HeadsView& next, const HeadsView& heads, int head_dim) {
  const char* const end = static_cast<const char*>(heads.data) + 2 * heads.num_heads * head_dim;
  return next.data == end && next.token_stride == heads.token_stride &&
         (next.num_heads == 1 || next.head_stride == head_dim);
}

}  // namespace

std::optional<RotaryEnd> RotaryEndOf(const RotaryArgs& args) {
  const int head_dim = args.head_dim_qk;
  const bool is_16_bit = args.dtype == DType::kFloat16 || args.dtype == DType::kBFloat16;
  if (!is_16_bit || args.kv.dtype != args.dtype || args.norm.is_on ||
      args.slot_mapping == nullptr || head_dim % 16 != 0 || args.head_dim_v != head_dim ||
      args.rotary_dim != head_dim || args.k.num_heads != args.v.num_heads) {
    return std::nullopt;
  }
  if (!IsOne(args.kv.k_scale) || !IsOne(args.kv.v_scale) || !HasWholeHeads(args.kv.k, head_dim) ||
      !HasWholeHeads(args.kv.v, head_dim)) {
    return std::nullopt;
  }
  if (!IsAligned(args.table) || !IsAligned(args.q.data) || args.q.token_stride % kAligned != 0 ||
      (args.q.num_heads > 1 && args.q.head_stride != head_dim) ||
      !Follows(args.k, args.q, head_dim) || !Follows(args.v, args.k, head_dim)) {
    return std::nullopt;
  }
  return RotaryEnd{.head_dim = head_dim,
                   .num_q_heads = args.q.num_heads,
                   .num_kv_heads = args.k.num_heads,
                   .positions = args.positions,
                   .table = args.table,
                   .max_positions = args.max_positions,
                   .slot_mapping = args.slot_mapping,
                   .num_slots = args.num_slots,
                   .k = args.kv.k,
                   .v = args.kv.v,
                   .places = SlotPlaces(args.kv)};
}

}  // namespace reprise
