// Attention through a builder: a batch made by the builder, random q, K and V for the batch, and
// the result of a dense float64 computation that uses only the definition of the attention.
//
//   const BuilderCase drawn = DrawBuilderCase(BuilderKind::kChunked, DType::kBFloat16, random);
//   SCOPED_TRACE(drawn.description);
//   // run drawn.paged (or drawn.ragged) on the CPU or the GPU, and compare with drawn.dense
//
// In paged cases, K and V are NaN except for keys that some query sees by definition.
//
// Thread safety: const data after construction.

#ifndef REPRISE_ATTENTION_TESTING_BUILDER_CASES_H_
#define REPRISE_ATTENTION_TESTING_BUILDER_CASES_H_

#include <optional>
#include <ostream>
#include <string>

#include "reprise/attention/reference/reference.h"
#include "reprise/attention/testing/batch_generator.h"
#include "reprise/attention/testing/ragged_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/dtype.h"

namespace reprise {

enum class BuilderKind {
  kRows,         // decode, prefill, chunked prefill
  kWindow,       // on one side and on both, with null blocks left of the window
  kChunked,      // virtual rows
  kLocalTable,   // one table per virtual row
  kCross,        // attends to an encoder's keys
  kSharedTable,  // decoder keys follow encoder keys in one table
  kEncoder,      // contiguous keys
  kProfile,
  kProfileZeros,
};

std::ostream& operator<<(std::ostream& out, BuilderKind kind);

inline constexpr BuilderKind kAllBuilderKinds[] = {
    BuilderKind::kRows,       BuilderKind::kWindow,  BuilderKind::kChunked,
    BuilderKind::kLocalTable, BuilderKind::kCross,   BuilderKind::kSharedTable,
    BuilderKind::kEncoder,    BuilderKind::kProfile, BuilderKind::kProfileZeros};

struct BuilderCase {
  std::string description;
  std::optional<PagedFixture> paged;  // one of the two is set
  std::optional<RaggedFixture> ragged;
  ReferenceResult<double> dense;  // [num_tokens, ...] in the batch's order; inert tokens 0, -inf
};

// Draws a case whose q, K and V have the given dtype.
BuilderCase DrawBuilderCase(BuilderKind kind, DType dtype, Random& random);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_BUILDER_CASES_H_
