// Headers of other projects for tests: those of vocabulary.h, and googletest.
#ifndef REPRISE_TOOLS_PRECOMPILED_TESTS_H_
#define REPRISE_TOOLS_PRECOMPILED_TESTS_H_

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/precompiled/vocabulary.h"

#endif  // REPRISE_TOOLS_PRECOMPILED_TESTS_H_
