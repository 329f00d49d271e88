// Rejection sampling and the kernels for draft heads on the device. They must match the host byte
// by byte, and tokens must have the model's distribution.

#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/base/testing/builder_twins.h"
#include "reprise/base/testing/device_array.h"
#include "reprise/runner/speculation/keep_states.h"
#include "reprise/runner/speculation/place_drafts.h"
#include "reprise/runner/speculation/reject_drafts.h"
#include "reprise/runner/testing/rejection_cases.h"

namespace reprise {
namespace {

class DrawnDraftsGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasCudaDevice()) GTEST_SKIP() << "no GPU on this machine";
  }
};

template <typename Args, typename Carve, typename Launch, typename Draw, typename OnHost>
void CompareManyShapes(int num_shapes, Carve carve, Launch launch, Draw draw, OnHost on_host) {
  std::mt19937 random(1);
  for (int i = 0; i < num_shapes; ++i) {
    const RejectionShape shape = DrawRejectionShape(random);
    SCOPED_TRACE(testing::Message() << "case " << i << ": " << shape);
    BuilderTwins<Args> twins([&](ArrayCarver& carver) { return carve(shape, carver); }, launch);
    for (int replay = 0; replay < 3; ++replay) {
      twins.Poison();
      draw(random, shape, twins.args());
      ASSERT_EQ(twins.Compare(on_host), "") << "replay " << replay;
    }
  }
}

TEST_F(DrawnDraftsGpuTest, RejectDraftsMatchesTheHost) {
  CompareManyShapes<RejectDraftsArgs>(150, CarveRejectDrafts, LaunchRejectDrafts, DrawRejectDrafts,
                                      RejectDraftsOnHost);
}

TEST_F(DrawnDraftsGpuTest, PlaceDraftsMatchesTheHost) {
  CompareManyShapes<PlaceDraftsArgs>(60, CarvePlaceDrafts, LaunchPlaceDrafts, DrawPlaceDrafts,
                                     PlaceDraftsOnHost);
}

TEST_F(DrawnDraftsGpuTest, KeepStatesMatchesTheHost) {
  CompareManyShapes<KeepStatesArgs>(60, CarveKeepStates, LaunchKeepStates, DrawKeepStates,
                                    KeepStatesOnHost);
}

// A device copy of a host array.
template <typename T>
class Uploaded {
 public:
  Uploaded(const T* values, int64_t count) : array_(count) {
    array_.Upload({values, static_cast<size_t>(count)});
  }
  T* data() { return array_.data(); }
  std::vector<T> Download() { return array_.Download(); }

 private:
  DeviceArray<T> array_;
};

// Runs LaunchRejectDrafts() on a device copy of arguments in host memory.
void RejectOnDevice(const RejectDraftsArgs& host) {
  const StepArrays& arrays = host.arrays;
  const int rows = host.first_row + host.num_rows;
  Uploaded<float> logits(static_cast<const float*>(host.logits), int64_t{rows} * host.vocab_size);
  Uploaded<SamplingParams> params(host.slots.params, host.slots.num_slots);
  Uploaded<int64_t> sample_index(host.slots.sample_index, host.slots.num_slots);
  Uploaded<int32_t> token_ids(arrays.token_ids, arrays.max_tokens);
  Uploaded<int32_t> draft_rows(arrays.draft_logits, arrays.max_tokens);
  Uploaded<int32_t> logits_indices(arrays.logits_indices, rows);
  Uploaded<int32_t> sample_slot(arrays.sample_slot, rows);
  Uploaded<int32_t> sample_offset(arrays.sample_offset, rows);
  Uploaded<int32_t> chosen(host.chosen, rows);
  const int64_t num_draft_logits = int64_t{host.num_draft_rows} * host.vocab_size;
  Uploaded<float> draft_logits(static_cast<const float*>(host.draft_logits), num_draft_logits);
  RejectDraftsArgs args = host;
  args.logits = logits.data();
  if (host.draft_logits != nullptr) args.draft_logits = draft_logits.data();
  args.slots.params = params.data();
  args.slots.sample_index = sample_index.data();
  args.arrays.token_ids = token_ids.data();
  args.arrays.draft_logits = draft_rows.data();
  args.arrays.logits_indices = logits_indices.data();
  args.arrays.sample_slot = sample_slot.data();
  args.arrays.sample_offset = sample_offset.data();
  args.chosen = chosen.data();
  ASSERT_EQ(LaunchRejectDrafts(args, nullptr), absl::OkStatus());
  CheckCuda(cudaDeviceSynchronize());
  const std::vector<int32_t> got = chosen.Download();
  std::copy(got.begin(), got.end(), host.chosen);
}

TEST_F(DrawnDraftsGpuTest, AMillionTokensHaveTheModelsDistribution) {
  for (const bool drafts_drawn : {true, false}) {
    const SamplingParams sampling = {
        .temperature = 0.8f, .top_k = drafts_drawn ? 5 : 0, .top_p = 0.95f};
    const MarkovModels models = SomeMarkovModels(sampling, drafts_drawn);
    const MarkovTexts texts = GenerateTexts(models, 250000, 4, 1, RejectOnDevice);
    const double deviation = ChiSquareDeviation(models, texts);
    EXPECT_GT(deviation, -3.5) << "drawn: " << drafts_drawn;
    EXPECT_LT(deviation, 4) << "drawn: " << drafts_drawn;
  }
}

}  // namespace
}  // namespace reprise
