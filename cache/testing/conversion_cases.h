// Block table conversions for tests: random, hostile and rejected ones.
//
//   BuilderMemory<ConvertTablesArgs> memory(
//       [&](ArrayCarver& carver) { return CarveConversion(shape, carver); });
//   DrawConversion(random, /*hostility=*/0.2, memory.args());
//   ConvertTablesOnHost(memory.args());
//
// Thread safety: pure functions.

#ifndef REPRISE_CACHE_TESTING_CONVERSION_CASES_H_
#define REPRISE_CACHE_TESTING_CONVERSION_CASES_H_

#include <random>
#include <string>
#include <vector>

#include "reprise/base/testing/builder_memory.h"
#include "reprise/cache/tables/convert_tables_args.h"

namespace reprise {

enum class ConversionForm { kPaddedToBoth, kPackedToPadded, kTokensToBlocks, kBlocksToTokens };

inline constexpr ConversionForm kAllConversionForms[] = {
    ConversionForm::kPaddedToBoth, ConversionForm::kPackedToPadded, ConversionForm::kTokensToBlocks,
    ConversionForm::kBlocksToTokens};

struct ConversionShape {
  ConversionForm form = ConversionForm::kPaddedToBoth;
  int num_rows = 8;
  int max_blocks = 10;  // columns of each table with block entries
  int block_size = 4;
  int max_indices = 60;  // capacity of a packed table
  TableSelection selection = {};
};

// Allocates all arrays of the arguments, inputs and outputs.
ConvertTablesArgs CarveConversion(const ConversionShape& shape, ArrayCarver& carver);

// Fills the inputs. `hostility` is the approximate fraction of rows with an invalid length, index
// or entry.
void DrawConversion(std::mt19937& random, double hostility, const ConvertTablesArgs& args);

// Arguments that CheckConvertTables() rejects, and its message. Their arrays must not be read.
struct RefusedConversion {
  ConvertTablesArgs args;
  std::string message;
};
std::vector<RefusedConversion> RefusedConversions();

}  // namespace reprise

#endif  // REPRISE_CACHE_TESTING_CONVERSION_CASES_H_
