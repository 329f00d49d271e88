#include "reprise/graphs/step_buffers.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/graphs/fingerprint.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;

// Memory for the buffers plus a guard area, which no buffer may overlap.
constexpr int64_t kGuardBytes = 256;
Memory AllocateFor(const StepBuffers& buffers) {
  return Memory(static_cast<std::byte*>(
      std::aligned_alloc(StepBuffers::kAlignment, buffers.bytes() + kGuardBytes)));
}

template <typename T>
StepBuffer<T> Planned(StepBuffers& buffers, std::string_view name, int64_t count) {
  absl::StatusOr<StepBuffer<T>> buffer = buffers.Plan<T>(name, count);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  return *buffer;
}

void ExpectInvalid(const absl::Status& status, const std::string& message) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(StepBuffersTest, CountsBytesBeforeBinding) {
  StepBuffers buffers;
  EXPECT_EQ(buffers.bytes(), 0);
  Planned<int32_t>(buffers, "seq_lens", 1);  // 4 bytes -> 256
  EXPECT_EQ(buffers.bytes(), 256);
  Planned<int64_t>(buffers, "slot_mapping", 32);  // 256 bytes, exactly full
  EXPECT_EQ(buffers.bytes(), 512);
  Planned<int64_t>(buffers, "more", 33);  // 264 -> 512
  EXPECT_EQ(buffers.bytes(), 1024);
  Planned<float>(buffers, "none", 0);
  EXPECT_EQ(buffers.bytes(), 1024);
  EXPECT_FALSE(buffers.is_bound());
}

TEST(StepBuffersTest, BindsEachBufferToASeparateAlignedAddress) {
  StepBuffers buffers;
  const auto a = Planned<int32_t>(buffers, "a", 3);
  const auto b = Planned<double>(buffers, "b", 40);
  const auto c = Planned<char>(buffers, "c", 1);
  const Memory memory = AllocateFor(buffers);
  ASSERT_TRUE(buffers.Bind(memory.get(), buffers.bytes()).ok());
  EXPECT_EQ(buffers.memory(), memory.get());
  EXPECT_EQ(static_cast<void*>(buffers.data(a)), memory.get());
  EXPECT_EQ(static_cast<void*>(buffers.data(b)), memory.get() + 256);
  EXPECT_EQ(static_cast<void*>(buffers.data(c)), memory.get() + 256 + 512);
  EXPECT_EQ(buffers.span(b).size(), 40u);
  EXPECT_EQ(buffers.count(a), 3);
}

TEST(StepBuffersTest, ABufferWithoutElementsHasNoAddress) {
  StepBuffers buffers;
  const auto none = Planned<int32_t>(buffers, "none", 0);
  ASSERT_TRUE(buffers.Bind(nullptr, 0).ok());  // an empty plan needs no memory
  EXPECT_TRUE(buffers.is_bound());
  EXPECT_EQ(buffers.data(none), nullptr);
  EXPECT_TRUE(buffers.span(none).empty());
  buffers.Poison(std::byte{0xff});
}

TEST(StepBuffersTest, RejectsEmptyOrRepeatedNames) {
  StepBuffers buffers;
  Planned<int32_t>(buffers, "seq_lens", 4);
  ExpectInvalid(buffers.Plan<int32_t>("", 4).status(), "name must not be empty");
  ExpectInvalid(buffers.Plan<int64_t>("seq_lens", 8).status(),
                "name must be new: seq_lens is planned already");
  EXPECT_EQ(buffers.bytes(), 256);  // unchanged
}

TEST(StepBuffersTest, RejectsNegativeAndHugeCounts) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  StepBuffers buffers;
  ExpectInvalid(buffers.Plan<int32_t>("x", -1).status(), "count of x: expected at least 0, got -1");
  ExpectInvalid(buffers.Plan<int32_t>("x", std::numeric_limits<int64_t>::min()).status(),
                "expected at least 0");
  ExpectInvalid(buffers.Plan<int64_t>("x", kMax / 8 + 1).status(), "must fit into int64 bytes");
  ExpectInvalid(buffers.Plan<char>("x", kMax).status(), "must fit into int64 bytes");
  ExpectInvalid(buffers.Plan<char>("x", kMax - 255).status(), "must fit into int64 bytes");
  EXPECT_EQ(buffers.bytes(), 0);

  // Each buffer would fit by itself, but both together do not. The rejected name stays available.
  Planned<char>(buffers, "half", kMax / 2);
  ExpectInvalid(buffers.Plan<char>("other", kMax / 2 + 1).status(), "must fit into int64 bytes");
  Planned<char>(buffers, "other", 1);
}

TEST(StepBuffersTest, RejectsMemoryThatCannotHoldThePlan) {
  StepBuffers buffers;
  const auto a = Planned<int32_t>(buffers, "a", 100);  // 512 bytes
  const Memory memory = AllocateFor(buffers);
  ExpectInvalid(buffers.Bind(nullptr, 512), "memory must not be null: expected 512 bytes");
  ExpectInvalid(buffers.Bind(memory.get() + 64, 512), "expected a multiple of 256");
  ExpectInvalid(buffers.Bind(memory.get(), 511), "expected at least 512 bytes, got 511");
  ExpectInvalid(buffers.Bind(memory.get(), -1), "expected at least 512 bytes, got -1");
  EXPECT_FALSE(buffers.is_bound());
  ASSERT_TRUE(buffers.Bind(memory.get(), 512).ok());
  EXPECT_EQ(static_cast<void*>(buffers.data(a)), memory.get());
}

TEST(StepBuffersTest, RejectsPlanAndBindWhileBound) {
  StepBuffers buffers;
  const auto a = Planned<int32_t>(buffers, "a", 4);
  const Memory memory = AllocateFor(buffers);
  const Memory elsewhere = AllocateFor(buffers);
  ASSERT_TRUE(buffers.Bind(memory.get(), buffers.bytes()).ok());
  EXPECT_EQ(buffers.Plan<int32_t>("b", 4).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(buffers.Bind(elsewhere.get(), buffers.bytes()).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(static_cast<void*>(buffers.data(a)), memory.get());
  EXPECT_EQ(buffers.bytes(), 256);
}

TEST(StepBuffersTest, UnbindKeepsThePlanAndAllowsMoreBuffers) {
  StepBuffers buffers;
  const auto a = Planned<int32_t>(buffers, "a", 4);
  const Memory memory = AllocateFor(buffers);
  ASSERT_TRUE(buffers.Bind(memory.get(), buffers.bytes()).ok());
  buffers.Unbind();
  EXPECT_FALSE(buffers.is_bound());
  const auto b = Planned<int32_t>(buffers, "b", 4);
  const Memory larger = AllocateFor(buffers);
  ASSERT_TRUE(buffers.Bind(larger.get(), buffers.bytes()).ok());
  EXPECT_EQ(static_cast<void*>(buffers.data(a)), larger.get());
  EXPECT_EQ(static_cast<void*>(buffers.data(b)), larger.get() + 256);
}

TEST(StepBuffersTest, PoisonFillsExactlyTheBoundMemory) {
  StepBuffers buffers;
  const auto a = Planned<int32_t>(buffers, "a", 3);
  Planned<float>(buffers, "b", 65);
  const Memory memory = AllocateFor(buffers);
  const absl::Span<std::byte> guard(memory.get() + buffers.bytes(), kGuardBytes);
  for (std::byte& byte : guard) byte = std::byte{0x11};
  ASSERT_TRUE(buffers.Bind(memory.get(), buffers.bytes()).ok());
  buffers.Poison(std::byte{0xff});
  EXPECT_THAT(buffers.span(a), ElementsAre(-1, -1, -1));
  EXPECT_THAT(absl::MakeSpan(memory.get(), buffers.bytes()), Each(std::byte{0xff}));
  EXPECT_THAT(guard, Each(std::byte{0x11}));
}

TEST(StepBuffersTest, FingerprintDependsOnMemoryNamesAndSizes) {
  const auto fingerprint_of = [](std::string_view name, int64_t count, void* memory) {
    StepBuffers buffers;
    Planned<int32_t>(buffers, name, count);
    EXPECT_TRUE(buffers.Bind(memory, 1024).ok());
    Fingerprint fingerprint;
    buffers.AddTo(fingerprint);
    return fingerprint;
  };
  StepBuffers two;
  Planned<char>(two, "room", 2048);
  const Memory memory = AllocateFor(two);
  const Fingerprint captured = fingerprint_of("seq_lens", 10, memory.get());
  EXPECT_TRUE(CompareFingerprints(captured, fingerprint_of("seq_lens", 10, memory.get())).ok());
  const auto difference = [&](const Fingerprint& current) {
    return std::string(CompareFingerprints(captured, current).message());
  };
  EXPECT_THAT(difference(fingerprint_of("seq_lens", 11, memory.get())),
              HasSubstr("seq_lens.bytes: expected 40, got 44"));
  EXPECT_THAT(difference(fingerprint_of("seq_lens", 10, memory.get() + 1024)),
              HasSubstr("seq_lens: expected 0x"));
  EXPECT_THAT(difference(fingerprint_of("positions", 10, memory.get())),
              HasSubstr("entry 0: expected seq_lens, got positions"));
}

TEST(StepBuffersTest, ListingForTheFingerprintAgainAllocatesNothing) {
  StepBuffers buffers;
  for (int i = 0; i < 20; ++i) {
    Planned<int32_t>(buffers, absl::StrCat("a buffer with quite a long name, number ", i), 8);
  }
  const Memory memory = AllocateFor(buffers);
  ASSERT_TRUE(buffers.Bind(memory.get(), buffers.bytes()).ok());
  Fingerprint fingerprint;
  buffers.AddTo(fingerprint);
  AllocationCounter allocations;
  fingerprint.Clear();
  buffers.AddTo(fingerprint);
  EXPECT_EQ(allocations.count(), 0);
  EXPECT_EQ(fingerprint.size(), 40);
}

TEST(StepBuffersTest, RandomPlansNeverOverlapAndStayInside) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 100; ++round) {
    StepBuffers buffers;
    std::vector<StepBuffer<uint16_t>> handles;
    const int num_buffers = 1 + static_cast<int>(random() % 20);
    for (int i = 0; i < num_buffers; ++i) {
      handles.push_back(Planned<uint16_t>(buffers, absl::StrCat("b", i), random() % 500));
    }
    const Memory memory = AllocateFor(buffers);
    ASSERT_TRUE(buffers.Bind(memory.get(), buffers.bytes()).ok());
    // Each buffer writes its own index to all its elements; then each must read back only that
    // index.
    for (int i = 0; i < num_buffers; ++i) {
      for (uint16_t& element : buffers.span(handles[i])) element = static_cast<uint16_t>(i);
    }
    for (int i = 0; i < num_buffers; ++i) {
      ASSERT_THAT(buffers.span(handles[i]), Each(static_cast<uint16_t>(i)));
      ASSERT_EQ(reinterpret_cast<uintptr_t>(buffers.data(handles[i])) % 256, 0u);
      ASSERT_LE(reinterpret_cast<std::byte*>(buffers.span(handles[i]).end()),
                memory.get() + buffers.bytes());
    }
  }
}

TEST(StepBuffersDeathTest, DiesIfUnboundBuffersAreUsed) {
  StepBuffers buffers;
  const auto a = Planned<int32_t>(buffers, "seq_lens", 4);
  EXPECT_DEATH(buffers.data(a), "seq_lens has no memory before the buffers are bound");
  EXPECT_DEATH(buffers.memory(), "no memory before they are bound");
  EXPECT_DEATH(buffers.Poison(std::byte{0}), "no memory before they are bound");
  Fingerprint fingerprint;
  EXPECT_DEATH(buffers.AddTo(fingerprint), "seq_lens has no memory");
  StepBuffers other;
  EXPECT_DEATH(other.count(a), "planned elsewhere");
}

}  // namespace
}  // namespace reprise
