// The cross-product of everything attention can be asked for, pair by pair: one generator for the
// kernels and for the CPU path.
//
//   for (const CrossProductCase& c : CrossProductCases(seed)) {
//     PagedFixture fixture = MakePagedFixture(c.fixture);       // or ragged, if c.keys say so
//     SCOPED_TRACE(fixture.description);
//     ...
//   }
//
// Each call gives a covering array: for every two of the fields (features, types, layout, sizes,
// form of the output, kind of work map) and every choice of each, a case has both. What the
// contract excludes gives way. The values are drawn from seeds, which the fixtures' descriptions
// name.
//
// Thread safety: const data.

#ifndef ATTENTION_TESTING_CROSS_PRODUCT_H_
#define ATTENTION_TESTING_CROSS_PRODUCT_H_

#include <cstdint>
#include <vector>

#include "attention/testing/attention_error.h"
#include "attention/testing/fixture_options.h"
#include "attention/work_map.h"
#include "attention/work_map_plan.h"
#include "base/dtype.h"

namespace reprise {

enum class KeySource { kPaged, kRagged };

struct CrossProductCase {
  FixtureOptions fixture;
  KeySource keys = KeySource::kPaged;
  DType products = DType::kFloat32;  // the type of the kernels' products for these q and KV
  OutputRounding out;
  int num_extra_tokens = 0;  // rows of out beyond the batch's
  int out_gap = 0;           // elements between heads and between tokens of out
  // Of the work map.
  int num_sms = 132;
  WorkMapMode mode = WorkMapMode::kBalanced;
  SharedPrefix shared_prefix = SharedPrefix::kIgnored;
};

// Some 150 cases; equal seeds give equal ones.
std::vector<CrossProductCase> CrossProductCases(uint64_t seed);

}  // namespace reprise

#endif  // ATTENTION_TESTING_CROSS_PRODUCT_H_
