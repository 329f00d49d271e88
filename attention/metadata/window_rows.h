// Converts sliding windows to the convention of AttentionParams, and computes which part of a
// sequence a window still reaches. For models with other conventions, and for managers that drop
// blocks.
//
//   // Mistral's config says sliding_window 4096: tokens, the query's own included.
//   params.window_left = WindowLeft(4096, WindowCount::kTokens);       // 4095
//   // SGLang's get_attention_sliding_window_size() has already subtracted:
//   params.window_left = WindowLeft(4095, WindowCount::kKeysBefore);   // 4095
//
// A window needs no separate batch: rows stay as they are. The window is a parameter of the layer,
// and applies on both sides if window_right is given and the batch is not causal. Blocks entirely
// left of every query's window are never read and may be null blocks in the table.
//
// Everything constexpr, for host and device.

#ifndef REPRISE_ATTENTION_METADATA_WINDOW_ROWS_H_
#define REPRISE_ATTENTION_METADATA_WINDOW_ROWS_H_

#include <cstdint>
#include <optional>

namespace reprise {

// What a model's or engine's window counts.
enum class WindowCount : int8_t {
  kTokens,      // including the query's own: Hugging Face sliding_window, Mistral, Gemma, gpt-oss
  kKeysBefore,  // without it: FlashInfer and FlashAttention window_left, SGLang's model runner
};

// window_left of AttentionParams. Absent and -1 (the kernels' convention) both mean no window; so
// does a window of 0 tokens, which would otherwise see nothing.
constexpr std::optional<int> WindowLeft(std::optional<int> window, WindowCount count) {
  if (!window || *window < 0) return std::nullopt;
  if (count == WindowCount::kKeysBefore) return *window;
  if (*window == 0) return std::nullopt;
  return *window - 1;
}

// The first position that a query at `position` or any later one sees.
constexpr int64_t FirstPositionSeen(int64_t position, int window_left) {
  return position > window_left ? position - window_left : 0;
}

// Number of leading block table columns that queries from `position` on never read. They may be
// null.
constexpr int64_t NumColumnsLeftOfWindow(int64_t position, int window_left, int block_size) {
  return FirstPositionSeen(position, window_left) / block_size;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_WINDOW_ROWS_H_
