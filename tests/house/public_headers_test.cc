// All headers of the toolkit compile in one file: a name that two of them define differently would
// fail to compile here, and break the one-definition rule wherever a program uses both.
//
// The list is generated from the filegroup `headers` of each package.

#include "tests/house/public_headers.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "gtest/gtest.h"

namespace {

TEST(PublicHeadersTest, EveryRoomIsCompiledTogetherWithTheOthers) {
  for (const std::string_view room : {"base/",
                                      "cache/blocks/",
                                      "cache/ops/",
                                      "cache/prefix/",
                                      "cache/storage/",
                                      "cache/tables/",
                                      "attention/",
                                      "attention/metadata/",
                                      "attention/speculation/",
                                      "attention/merge/",
                                      "attention/tile_schedule/",
                                      "attention/cuda/",
                                      "attention/cpu/",
                                      "graphs/",
                                      "runner/",
                                      "runner/slots/",
                                      "runner/sampling/",
                                      "runner/speculation/",
                                      "runner/ops/",
                                      "engine/"}) {
    EXPECT_TRUE(std::any_of(
        std::begin(kPublicHeaders), std::end(kPublicHeaders),
        [&](std::string_view header) { return header.substr(0, header.rfind('/') + 1) == room; }))
        << room;
  }
}

}  // namespace
