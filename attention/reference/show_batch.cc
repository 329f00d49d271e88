// Prints the keys that each query of a batch sees, before and after a builder.
//
//   show_batch --query_lens 4,10,5 --seq_lens 6,17,9 --block_size 2 --chunk_size 4
//   show_batch --query_lens 1,3 --seq_lens 9,12 --block_size 4 --window_left 3
//   show_batch --query_lens 1,2 --seq_lens 5,2 --encoder_lens 7,3 --block_size 4
//   show_batch --query_lens 4 --seq_lens 9 --block_size 4 --tree=-1,0,0,1
//   show_batch --query_lens 2 --seq_lens 9 --block_size 2 --ranks 2 --interleave 2
//   show_batch --encoder_inputs 3,2
//
// docs/metadata.md explains the drawings.

#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "reprise/attention/reference/picture_case.h"
#include "reprise/base/status_macros.h"

using Words = std::vector<std::string>;

ABSL_FLAG(Words, query_lens, Words(), "new tokens of each row");
ABSL_FLAG(Words, seq_lens, Words(), "keys of each row, including its new tokens");
ABSL_FLAG(int, block_size, 1, "tokens per block");
ABSL_FLAG(int, window_left, -1, "keys to the left of its own key that a query sees; -1: all");
ABSL_FLAG(int, window_right, -1, "keys to the right of its own key that a query sees; -1: all");
ABSL_FLAG(int, chunk_size, 0, "chunk size of chunked-local attention in tokens; 0: off");
ABSL_FLAG(Words, encoder_lens, Words(), "cross attention: encoder tokens of each row");
ABSL_FLAG(Words, tree, Words(),
          "parents of the token tree that is each row's queries; -1: no parent");
ABSL_FLAG(int, ranks, 0, "number of context-parallel ranks; draws each rank's keys; 0: off");
ABSL_FLAG(int, interleave, 1, "number of consecutive tokens that a rank holds");
ABSL_FLAG(Words, encoder_inputs, Words(), "encoder self-attention: tokens of each input");
ABSL_FLAG(Words, profile_inputs, Words(), "a profile run: tokens of each sequence");

namespace reprise {
namespace {

absl::StatusOr<std::vector<int32_t>> Numbers(const std::string& name, const Words& words) {
  std::vector<int32_t> numbers;
  for (const std::string& word : words) {
    int32_t number = 0;
    if (!absl::SimpleAtoi(word, &number)) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": expected numbers, got ", word));
    }
    numbers.push_back(number);
  }
  return numbers;
}

std::optional<int> Unless(int value, int absent) {
  return value == absent ? std::nullopt : std::optional<int>(value);
}

absl::StatusOr<std::string> Draw() {
  PictureCase picture;
  REPRISE_ASSIGN_OR_RETURN(picture.query_lens,
                           Numbers("query_lens", absl::GetFlag(FLAGS_query_lens)));
  REPRISE_ASSIGN_OR_RETURN(picture.seq_lens, Numbers("seq_lens", absl::GetFlag(FLAGS_seq_lens)));
  REPRISE_ASSIGN_OR_RETURN(picture.encoder_lens,
                           Numbers("encoder_lens", absl::GetFlag(FLAGS_encoder_lens)));
  REPRISE_ASSIGN_OR_RETURN(picture.encoder_inputs,
                           Numbers("encoder_inputs", absl::GetFlag(FLAGS_encoder_inputs)));
  REPRISE_ASSIGN_OR_RETURN(picture.profile_inputs,
                           Numbers("profile_inputs", absl::GetFlag(FLAGS_profile_inputs)));
  REPRISE_ASSIGN_OR_RETURN(picture.tree, Numbers("tree", absl::GetFlag(FLAGS_tree)));
  picture.ranks = Unless(absl::GetFlag(FLAGS_ranks), 0);
  picture.interleave = absl::GetFlag(FLAGS_interleave);
  picture.block_size = absl::GetFlag(FLAGS_block_size);
  picture.window_left = Unless(absl::GetFlag(FLAGS_window_left), -1);
  picture.window_right = Unless(absl::GetFlag(FLAGS_window_right), -1);
  picture.chunk_size = Unless(absl::GetFlag(FLAGS_chunk_size), 0);
  return DrawCase(picture);
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("prints the keys that each query of a batch sees");
  absl::ParseCommandLine(argc, argv);
  const absl::StatusOr<std::string> text = reprise::Draw();
  if (!text.ok()) {
    std::cerr << "show_batch: " << text.status().message() << "\n";
    return 1;
  }
  std::cout << *text;
  return 0;
}
