// Tests of ModelRunner for embeddings that replace tokens, and for positions with several
// dimensions, on every device.

#ifndef REPRISE_RUNNER_TESTING_INPUT_EMBEDDINGS_SUITE_H_
#define REPRISE_RUNNER_TESTING_INPUT_EMBEDDINGS_SUITE_H_

#include "reprise/runner/testing/device_suite.h"

namespace reprise {

class InputEmbeddingsSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_INPUT_EMBEDDINGS_SUITE_H_
