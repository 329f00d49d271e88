// Attention through a builder: a batch that the builder made, random q, K and V for it, and the
// result of a dense float64 computation that uses only the definition of the attention.
//
//   const BuilderCase drawn = DrawBuilderCase(BuilderKind::kChunked, DType::kBFloat16, random);
//   SCOPED_TRACE(drawn.description);
//   // run drawn.paged (or drawn.ragged) on the CPU or the GPU, and compare with drawn.dense
//
// K and V are NaN wherever the definition lets no query see.
//
// Thread safety: const data once made.

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
  kWindow,       // on one side and on both, with null blocks left of it
  kChunked,      // virtual rows
  kLocalTable,   // a table per virtual row
  kCross,        // over an encoder's keys
  kSharedTable,  // the decoder's keys after the encoder's in one table
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
  std::optional<PagedFixture> paged;  // one of them
  std::optional<RaggedFixture> ragged;
  ReferenceResult<double> dense;  // [num_tokens, ...] as the batch has them; inert tokens 0, -inf
};

// q, K and V have the given dtype.
BuilderCase DrawBuilderCase(BuilderKind kind, DType dtype, Random& random);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_BUILDER_CASES_H_
