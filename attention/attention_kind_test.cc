#include "reprise/attention/attention_kind.h"

#include <string>

#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(AttentionKindTest, NamesRoundTrip) {
  for (const char* name : {"decoder", "encoder", "encoder-only", "encoder-decoder"}) {
    const absl::StatusOr<AttentionKind> kind = ParseAttentionKind(name);
    ASSERT_TRUE(kind.ok()) << kind.status();
    EXPECT_EQ(AttentionKindName(*kind), name);
  }
  EXPECT_EQ(*ParseAttentionKind("encoder-decoder"), AttentionKind::kEncoderDecoder);
  EXPECT_EQ(*ParseAttentionKind("encoder"), AttentionKind::kEncoder);
}

TEST(AttentionKindTest, RejectsOtherNamesAndListsTheValidOnes) {
  for (const char* name : {"", "Decoder", "encoder_only", "cross"}) {
    EXPECT_EQ(ParseAttentionKind(name).status().message(),
              std::string("kind of attention: expected decoder, encoder, encoder-only or "
                          "encoder-decoder, got \"") +
                  name + "\"");
  }
}

}  // namespace
}  // namespace reprise
