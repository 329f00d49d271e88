// Draws a batch that is described by a few numbers, before and after a builder. show_batch prints
// these drawings.
//
//   absl::StatusOr<std::string> text = DrawCase(
//       {.query_lens = {4, 10, 5}, .seq_lens = {6, 17, 9}, .block_size = 2, .chunk_size = 4});
//
// Blocks have the numbers 1, 2, ... in the order of the rows. Pure function.

#ifndef REPRISE_ATTENTION_REFERENCE_PICTURE_CASE_H_
#define REPRISE_ATTENTION_REFERENCE_PICTURE_CASE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace reprise {

struct PictureCase {
  std::vector<int32_t> query_lens = {};
  std::vector<int32_t> seq_lens = {};  // includes this step's tokens
  int block_size = 1;
  std::optional<int> window_left = {};
  std::optional<int> window_right = {};
  // Each of the following fields that is set adds one drawing.
  std::optional<int> chunk_size = {};        // virtual rows of chunked-local attention
  std::vector<int32_t> encoder_lens = {};    // cross attention: number of encoder keys per row
  std::vector<int32_t> tree = {};            // parents of the token tree that is each row's queries
  std::optional<int> ranks = {};             // number of ranks; adds one drawing per rank
  int interleave = 1;                        // number of consecutive tokens that a rank holds
  std::vector<int32_t> encoder_inputs = {};  // encoder self-attention: input lengths
  std::vector<int32_t> profile_inputs = {};  // a profile run: sequence lengths
};

// Returns a drawing of the rows, if there are any, then one drawing per builder. Each drawing has a
// heading. Errors: InvalidArgument for lists of different lengths, a query_len above its seq_len, a
// query_len that is not the size of the tree, or a block_size, chunk_size, number of ranks or
// interleave below 1; errors of the builders.
absl::StatusOr<std::string> DrawCase(const PictureCase& picture);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_REFERENCE_PICTURE_CASE_H_
