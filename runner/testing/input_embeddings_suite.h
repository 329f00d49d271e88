// What a ModelRunner must do with embeddings in place of tokens, and with positions of several
// dimensions, on every device.

#ifndef RUNNER_TESTING_INPUT_EMBEDDINGS_SUITE_H_
#define RUNNER_TESTING_INPUT_EMBEDDINGS_SUITE_H_

#include "runner/testing/device_suite.h"

namespace reprise {

class InputEmbeddingsSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // RUNNER_TESTING_INPUT_EMBEDDINGS_SUITE_H_
