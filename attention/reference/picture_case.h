// A batch described by a few numbers, drawn before and after a builder: what show_batch prints.
//
//   absl::StatusOr<std::string> text = DrawCase(
//       {.query_lens = {4, 10, 5}, .seq_lens = {6, 17, 9}, .block_size = 2, .chunk_size = 4});
//
// Blocks are numbered 1, 2, ... through the rows. Pure function.

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
  // Each of these draws one more batch, built from the rows.
  std::optional<int> chunk_size = {};        // virtual rows of chunked-local attention
  std::vector<int32_t> encoder_lens = {};    // cross attention: number of encoder keys per row
  std::vector<int32_t> tree = {};            // parents: the queries of each row are this token tree
  std::optional<int> ranks = {};             // number of ranks; draws the keys of each
  int interleave = 1;                        // consecutive tokens that a rank holds
  std::vector<int32_t> encoder_inputs = {};  // encoder self-attention: input lengths
  std::vector<int32_t> profile_inputs = {};  // a profile run: sequence lengths
};

// The rows, if there are any, then a drawing for each builder, each under a heading. Errors:
// InvalidArgument for what the builders refuse, and for lists of different lengths.
absl::StatusOr<std::string> DrawCase(const PictureCase& picture);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_REFERENCE_PICTURE_CASE_H_
