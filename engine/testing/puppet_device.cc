#include "engine/testing/puppet_device.h"

#include <algorithm>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr int32_t kRubbish = -777;

}  // namespace

int32_t PuppetToken(const std::vector<int32_t>& input, const std::vector<int32_t>& text,
                    const SamplingParams& sampling, int64_t index) {
  uint64_t h = 1469598103934665603u;
  for (const int32_t token : input) h = (h ^ static_cast<uint64_t>(token + 2)) * 1099511628211u;
  for (const int32_t token : text) h = (h ^ static_cast<uint64_t>(token + 1)) * 1099511628211u;
  if (sampling.temperature > 0) {
    h = (h ^ sampling.seed) * 1099511628211u;
    h = (h ^ static_cast<uint64_t>(index)) * 1099511628211u;
  }
  return static_cast<int32_t>((h >> 17) % kPuppetVocab);
}

int32_t PuppetContent(int32_t token, const float* embedding, absl::Span<const int32_t> positions) {
  int64_t content = embedding == nullptr ? token : kPuppetVocab + static_cast<int64_t>(*embedding);
  for (const int32_t position : positions) content = (content * 31 + position + 7) % 1000003;
  return static_cast<int32_t>(content);
}

PuppetText ExpectedText(const Request& request, int sample, const SchedulerOptions& options,
                        int max_cached_tokens) {
  const SamplingParams sampling =
      ToSamplingParams(request.sampling, request.sampling.seed.value_or(0) + sample);
  std::vector<int32_t> text = request.prompt;
  PuppetText expected;
  while (expected.finish == FinishReason::kNone) {
    const size_t index = expected.tokens.size();
    const bool forced = !request.forced_tokens.empty();
    const int32_t token =
        forced ? request.forced_tokens[index]
               : PuppetToken(request.encoder_tokens, text, sampling, static_cast<int64_t>(index));
    const size_t most = forced ? request.forced_tokens.size() : request.max_new_tokens;
    expected.tokens.push_back(token);
    text.push_back(token);
    if (!forced && std::count(request.stop_tokens.begin(), request.stop_tokens.end(), token)) {
      expected.finish = FinishReason::kStop;
    } else if (expected.tokens.size() >= most) {
      expected.finish = FinishReason::kLength;
    } else if (static_cast<int>(text.size()) > max_cached_tokens) {
      expected.finish = max_cached_tokens < options.max_seq_len ? FinishReason::kCacheFull
                                                                : FinishReason::kLength;
    }
  }
  return expected;
}

PuppetDevice::PuppetDevice(const SchedulerOptions& options)
    : options_(options), groups_(options.groups) {
  if (groups_.empty()) groups_.emplace_back();
}

int PuppetDevice::BlockAt(Slot& slot, int group, int position) const {
  return slot.blocks[{group, position / options_.block_size}];
}

int32_t& PuppetDevice::Memory(Slot& slot, int group, int position) {
  return memory_[BlockAt(slot, group, position) * options_.block_size +
                 position % options_.block_size];
}

void PuppetDevice::Copy(absl::Span<const BlockCopy> copies) {
  num_copies_ += static_cast<int64_t>(copies.size());
  for (const BlockCopy& copy : copies) {
    for (int i = 0; i < options_.block_size; ++i) {
      memory_[copy.dst * options_.block_size + i] = memory_[copy.src * options_.block_size + i];
    }
  }
}

void PuppetDevice::SwapOut(absl::Span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies) {
    ASSERT_TRUE(copy.src > 0 && copy.src < options_.num_blocks) << copy.src;
    ASSERT_TRUE(copy.dst > 0 && copy.dst < options_.num_swap_blocks) << copy.dst;
    std::vector<int32_t>& host = swapped_[copy.dst];
    host.clear();
    for (int i = 0; i < options_.block_size; ++i) {
      host.push_back(memory_[copy.src * options_.block_size + i]);
    }
  }
}

void PuppetDevice::SwapIn(absl::Span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies) {
    ASSERT_TRUE(swapped_.contains(copy.src)) << "host block " << copy.src << " was never written";
    ASSERT_TRUE(copy.dst > 0 && copy.dst < options_.num_blocks) << copy.dst;
    std::vector<int32_t>& host = swapped_[copy.src];
    for (int i = 0; i < options_.block_size; ++i) {
      memory_[copy.dst * options_.block_size + i] = host[i];
    }
    host.assign(options_.block_size, kRubbish);
  }
}

void PuppetDevice::FindText(Slot& slot) {
  for (int i = 0; i < slot.num_hits; ++i) {
    int32_t token = kRubbish;
    for (int group = 0; group < static_cast<int>(groups_.size()) && token < 0; ++group) {
      if (groups_[group].retention == KvRetention::kFull) token = Memory(slot, group, i);
    }
    EXPECT_NE(token, kRubbish) << "token " << i << " was found, but never computed";
    slot.text.push_back(token);
  }
  slot.num_hits = 0;
}

void PuppetDevice::Encode(const ScheduledEncode& encode, Slot& slot) {
  ASSERT_EQ(static_cast<int>(encode.tokens.size()), slot.num_encoder_tokens);
  for (int group = 0; group < static_cast<int>(groups_.size()); ++group) {
    if (groups_[group].retention != KvRetention::kCross) continue;
    for (int i = 0; i < slot.num_encoder_tokens; ++i) {
      ASSERT_NE(BlockAt(slot, group, i), 0) << "no block for token " << i << " of the input";
      Memory(slot, group, i) = slot.is_doomed ? kRubbish : encode.tokens[i];
    }
  }
}

std::vector<int32_t> PuppetDevice::FindInput(Slot& slot) {
  std::vector<int32_t> input;
  for (int group = 0; group < static_cast<int>(groups_.size()); ++group) {
    if (groups_[group].retention != KvRetention::kCross) continue;
    input.clear();
    for (int i = 0; i < slot.num_encoder_tokens; ++i) {
      EXPECT_NE(BlockAt(slot, group, i), 0);
      input.push_back(Memory(slot, group, i));
    }
  }
  return input;
}

std::vector<int32_t> PuppetDevice::ContentOf(const ScheduledRow& row,
                                             absl::Span<const ScheduledEmbeddings> embeddings,
                                             const Slot& slot) const {
  std::vector<int32_t> tokens(row.tokens.begin(), row.tokens.end());
  if (tokens.empty()) tokens.push_back(slot.last_token);
  const int num_tokens = static_cast<int>(tokens.size());
  std::vector<const float*> given(tokens.size(), nullptr);
  for (const ScheduledEmbeddings& range : embeddings) {
    for (int i = 0; i < range.rows.num_rows; ++i) {
      given.at(range.first_token + i) = static_cast<const float*>(range.rows.row(i));
    }
  }
  std::vector<int32_t> positions(options_.num_position_dims);
  if (options_.num_position_dims == 1) positions.clear();
  const int num_before = static_cast<int>(slot.text.size());
  if (row.positions.count > 0) {
    EXPECT_EQ(row.positions.num_dims, options_.num_position_dims);
  }
  for (int i = 0; i < num_tokens; ++i) {
    for (size_t dim = 0; dim < positions.size(); ++dim) {
      positions[dim] = i < row.positions.count
                           ? row.positions.data[dim * row.positions.dim_stride + i]
                           : num_before + i + slot.position_delta;
    }
    tokens[i] = PuppetContent(tokens[i], given[i], positions);
  }
  return tokens;
}

void PuppetDevice::RunRow(const ScheduledRow& row, absl::Span<const ScheduledEmbeddings> embeddings,
                          Slot& slot) {
  const std::vector<int32_t> content = ContentOf(row, embeddings, slot);
  slot.text.insert(slot.text.end(), content.begin(), content.end());
  const int end = static_cast<int>(slot.text.size());
  const int first = end - row.query_len();
  for (int group = 0; group < static_cast<int>(groups_.size()); ++group) {
    if (groups_[group].retention == KvRetention::kCross) continue;
    for (int i = first; i < end; ++i) {
      ASSERT_NE(BlockAt(slot, group, i), 0) << "no block for token " << i;
      Memory(slot, group, i) = slot.is_doomed ? kRubbish : slot.text[i];
    }
    if (slot.is_doomed) continue;
    // The keys that the row's first token sees, and all after them.
    for (int i = static_cast<int>(FirstNeededPosition(groups_[group], first)); i < first; ++i) {
      ASSERT_NE(BlockAt(slot, group, i), 0) << "token " << i << " of group " << group << " is gone";
      ASSERT_EQ(Memory(slot, group, i), slot.text[i])
          << "token " << i << " of group " << group << " has been overwritten";
    }
  }
}

void PuppetDevice::Launch(const ScheduledBatch& batch, const Fate& fate) {
  for (const SlotId slot : batch.leaves) {
    ASSERT_EQ(slots_.erase(slot.value()), 1u) << "slot " << slot << " leaves, but never joined";
  }
  for (const SlotJoin& join : batch.joins) {
    ASSERT_FALSE(slots_.contains(join.slot)) << "slot " << join.slot << " joined twice";
    slots_[join.slot] = {.sampling = join.sampling,
                         .sample_index = join.sample_index,
                         .num_encoder_tokens = join.num_encoder_tokens,
                         .position_delta = join.position_delta,
                         .num_hits = join.seq_len};
  }
  for (const BlockTableUpdate& update : batch.updates) {
    slots_[update.slot].blocks[{update.group, update.column}] = update.block;
  }
  ASSERT_NO_FATAL_FAILURE(SwapOut(batch.swap_outs));
  ASSERT_NO_FATAL_FAILURE(SwapIn(batch.swap_ins));
  Copy(batch.copies);
  for (auto& [id, slot] : slots_) {
    if (slot.num_hits > 0) FindText(slot);
  }
  for (const ScheduledEncode& encode : batch.encodes) {
    Slot& slot = slots_[encode.slot.value()];
    slot.is_doomed |= fate.fails;
    ASSERT_NO_FATAL_FAILURE(Encode(encode, slot));
  }
  std::vector<int32_t> tokens;
  int num_tokens = 0;
  std::set<int> seen;
  size_t next_range = 0;  // of embeddings
  for (const ScheduledRow& row : batch.rows) {
    ASSERT_TRUE(slots_.contains(row.slot.value())) << "row of a slot that never joined";
    ASSERT_TRUE(seen.insert(row.slot.value()).second) << "slot " << row.slot << " has two rows";
    Slot& slot = slots_[row.slot.value()];
    const bool is_nan =
        row.output == RowOutput::kToken && fate.nan_rows.contains(static_cast<int>(tokens.size()));
    slot.is_doomed |= fate.fails || is_nan;
    const size_t first_range = next_range;
    while (next_range < batch.embeddings.size() &&
           batch.embeddings[next_range].row == static_cast<int>(tokens.size())) {
      ++next_range;
    }
    ASSERT_NO_FATAL_FAILURE(
        RunRow(row, batch.embeddings.subspan(first_range, next_range - first_range), slot));
    num_tokens += row.query_len();
    if (row.output == RowOutput::kNone) {
      tokens.push_back(-1);
      continue;
    }
    slot.last_token =
        slot.is_doomed ? 0
                       : PuppetToken(FindInput(slot), slot.text, slot.sampling, slot.sample_index);
    ++slot.sample_index;
    tokens.push_back(is_nan ? -2 : slot.last_token);
  }
  ASSERT_LE(num_tokens, options_.max_num_tokens);
  ASSERT_EQ(next_range, batch.embeddings.size()) << "embeddings of no row";
  if (fate.fails) {
    pending_.push_back(absl::InternalError("the step failed"));
  } else {
    pending_.push_back(std::move(tokens));
  }
}

absl::StatusOr<std::vector<int32_t>> PuppetDevice::Await() {
  absl::StatusOr<std::vector<int32_t>> tokens = std::move(pending_.front());
  pending_.pop_front();
  return tokens;
}

}  // namespace reprise
