#include "reprise/engine/testing/puppet_device.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr int32_t kRubbish = -777;

// Like FNV-1a, over 64-bit words.
struct Hash {
  uint64_t value = 1469598103934665603u;
  void Mix(uint64_t x) { value = (value ^ x) * 1099511628211u; }
  void Mix(absl::Span<const int32_t> tokens) {
    for (const int32_t token : tokens) Mix(static_cast<uint64_t>(token + 1));
    Mix(uint64_t{99});
  }
};

bool IsAllowed(absl::Span<const int32_t> mask, int32_t token) {
  return mask.empty() || ((static_cast<uint32_t>(mask[token / 32]) >> (token % 32)) & 1) != 0;
}

PuppetLogits LogitsOf(const LogitsRequest& request) {
  PuppetLogits logits = {.params = request.params,
                         .biases = {request.biases.begin(), request.biases.end()},
                         .stages = request.stages};
  if (HasPenalties(request.params)) {
    logits.prompt.assign(request.prompt.begin(), request.prompt.end());
    logits.output.assign(request.output.begin(), request.output.end());
  }
  return logits;
}

// Returns the scheduler options with the capabilities of the fake runner; no drafts unless the
// policy has some.
SchedulerOptions Served(SchedulerOptions options) {
  RunnerShape& shape = options.shape;
  if (!options.policy.speculation.has_value()) options.policy.speculation.emplace();
  const std::vector<int>& levels = shape.drafts.level_drafts;
  const int num_levels = options.policy.speculation->num_drafts;
  shape.vocab_size = kPuppetVocab;
  shape.drafts.max_drafts = levels.empty() || num_levels == 0 ? num_levels : levels[num_levels - 1];
  return options;
}

// Returns the shape of a runner that accepts embeddings, and has earlier logits for all drafts.
RunnerShape ShapeOfMirror(const SchedulerOptions& served) {
  RunnerShape shape = served.shape;
  shape.drafts.has_proposer = true;
  shape.embeddings = {.dim = 1};
  shape.max_earlier_logits =
      std::max(shape.max_earlier_logits, shape.max_num_seqs * shape.drafts.max_drafts);
  return shape;
}

}  // namespace

std::optional<int32_t> PuppetToken(const std::vector<int32_t>& input,
                                   const std::vector<int32_t>& text, const SamplingParams& sampling,
                                   int64_t index, const PuppetLogits& logits,
                                   absl::Span<const int32_t> mask) {
  Hash hash;
  hash.Mix(input);
  hash.Mix(text);
  if (sampling.temperature > 0) {
    hash.Mix(sampling.seed);
    hash.Mix(static_cast<uint64_t>(index));
  }
  const LogitsParams& params = logits.params;
  if (HasPenalties(params)) {
    hash.Mix(static_cast<uint64_t>(params.repetition_penalty * 1024));
    hash.Mix(static_cast<uint64_t>(params.presence_penalty * 1024 + 5000));
    hash.Mix(static_cast<uint64_t>(params.frequency_penalty * 1024 + 5000));
    hash.Mix(logits.prompt);
    hash.Mix(logits.output);
  }
  for (const LogitBias& bias : logits.biases) {
    hash.Mix(static_cast<uint64_t>(bias.token));
    hash.Mix(static_cast<uint64_t>(bias.bias * 1024 + 5000));
  }
  hash.Mix(logits.stages);
  const auto first = static_cast<int32_t>((hash.value >> 17) % kPuppetVocab);
  for (int i = 0; i < kPuppetVocab; ++i) {
    const int32_t token = (first + i) % kPuppetVocab;
    if (IsAllowed(mask, token)) return token;
  }
  return std::nullopt;
}

TokenLogProbs PuppetLogProbs(absl::Span<const int32_t> text, int32_t token, int num_top) {
  Hash hash;
  hash.Mix(text);
  Hash of_token = hash;
  of_token.Mix(static_cast<uint64_t>(token));
  TokenLogProbs result = {.token = token,
                          .log_prob = -static_cast<float>(of_token.value % 1000) / 8,
                          .rank = 1 + static_cast<int32_t>(of_token.value % kPuppetVocab)};
  for (int i = 0; i < num_top; ++i) {
    hash.Mix(uint64_t{7});
    result.top.push_back({.token = static_cast<int32_t>(hash.value % kPuppetVocab),
                          .log_prob = -static_cast<float>(hash.value % 500) / 16});
  }
  return result;
}

void PuppetText::Add(const TokenEvent& event) {
  if (event.token.has_value()) tokens.push_back(*event.token);
  if (event.log_probs.has_value()) log_probs.push_back(*event.log_probs);
  if (event.prompt_log_probs != nullptr) {
    EXPECT_EQ(event.index, 0);
    prompt_log_probs = *event.prompt_log_probs;
  }
  finish = event.finish;
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
  PuppetLogits logits = LogitsOf(ToLogitsRequest(request));
  const bool forced = !request.forced_tokens.empty();
  std::unique_ptr<TokenMasker> masker;
  if (request.new_token_masker && !forced) masker = request.new_token_masker();
  std::vector<int32_t> mask(masker == nullptr ? 0 : options.shape.mask_words);
  std::vector<int32_t> text = request.prompt;
  PuppetText expected;
  if (request.num_prompt_log_probs >= 0) {
    for (size_t i = 1; i < text.size(); ++i) {
      expected.prompt_log_probs.push_back(PuppetLogProbs(absl::MakeConstSpan(text).first(i),
                                                         text[i], request.num_prompt_log_probs));
    }
  }
  const size_t most =
      forced ? request.forced_tokens.size() : static_cast<size_t>(request.max_new_tokens);
  if (most == 0) expected.finish = FinishReason::kLength;
  while (expected.finish == FinishReason::kNone) {
    const size_t index = expected.tokens.size();
    if (masker != nullptr) masker->Fill(absl::MakeSpan(mask));
    const std::optional<int32_t> chosen =
        forced ? request.forced_tokens[index]
               : PuppetToken(request.encoder_tokens, text, sampling, static_cast<int64_t>(index),
                             logits, mask);
    if (!chosen.has_value()) {
      expected.finish = FinishReason::kError;
      break;
    }
    const int32_t token = *chosen;
    if (request.num_log_probs >= 0) {
      expected.log_probs.push_back(PuppetLogProbs(text, token, request.num_log_probs));
    }
    expected.tokens.push_back(token);
    text.push_back(token);
    if (HasPenalties(logits.params)) logits.output.push_back(token);
    const bool is_complete = masker != nullptr && !masker->Accept(token);
    if (!forced && (is_complete || std::count(request.stop_tokens.begin(),
                                              request.stop_tokens.end(), token) > 0)) {
      expected.finish = FinishReason::kStop;
    } else if (expected.tokens.size() >= most) {
      expected.finish = FinishReason::kLength;
    } else if (static_cast<int>(text.size()) > max_cached_tokens) {
      expected.finish = max_cached_tokens < options.shape.max_seq_len ? FinishReason::kCacheFull
                                                                      : FinishReason::kLength;
    }
  }
  return expected;
}

void PuppetDevice::LogProbArrays::Add(const TokenLogProbs* row) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  log_probs.push_back(row == nullptr ? kNan : row->log_prob);
  ranks.push_back(row == nullptr ? 0 : row->rank);
  for (int i = 0; i < kMaxTopLogProbs; ++i) {
    const bool is_there = row != nullptr && i < static_cast<int>(row->top.size());
    top_tokens.push_back(is_there ? row->top[i].token : -1);
    top_log_probs.push_back(is_there ? row->top[i].log_prob : kNan);
  }
}

RowLogProbsView PuppetDevice::LogProbArrays::View() const {
  return {.token_log_probs = log_probs,
          .token_ranks = ranks,
          .top_tokens = top_tokens,
          .top_log_probs = top_log_probs,
          .max_top = kMaxTopLogProbs};
}

PuppetDevice::PuppetDevice(const SchedulerOptions& options)
    : options_(Served(options)), groups_(options.shape.groups), mirror_(ShapeOfMirror(options_)) {
  if (groups_.empty()) groups_.emplace_back();
}

int PuppetDevice::BlockAt(Slot& slot, int group, int position) const {
  return slot.blocks[{group, position / options_.shape.block_size}];
}

int32_t& PuppetDevice::Memory(Slot& slot, int group, int position) {
  return memory_[BlockAt(slot, group, position) * options_.shape.block_size +
                 position % options_.shape.block_size];
}

void PuppetDevice::Copy(absl::Span<const BlockCopy> copies) {
  num_copies_ += static_cast<int64_t>(copies.size());
  for (const BlockCopy& copy : copies) {
    for (int i = 0; i < options_.shape.block_size; ++i) {
      memory_[copy.dst * options_.shape.block_size + i] =
          memory_[copy.src * options_.shape.block_size + i];
    }
  }
}

void PuppetDevice::SwapOut(absl::Span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies) {
    ASSERT_TRUE(copy.src > 0 && copy.src < options_.shape.num_blocks) << copy.src;
    ASSERT_TRUE(copy.dst > 0 && copy.dst < options_.shape.num_swap_blocks) << copy.dst;
    std::vector<int32_t>& host = swapped_[copy.dst];
    host.clear();
    for (int i = 0; i < options_.shape.block_size; ++i) {
      host.push_back(memory_[copy.src * options_.shape.block_size + i]);
    }
  }
}

void PuppetDevice::SwapIn(absl::Span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies) {
    ASSERT_TRUE(swapped_.contains(copy.src)) << "host block " << copy.src << " was never written";
    ASSERT_TRUE(copy.dst > 0 && copy.dst < options_.shape.num_blocks) << copy.dst;
    std::vector<int32_t>& host = swapped_[copy.src];
    for (int i = 0; i < options_.shape.block_size; ++i) {
      memory_[copy.dst * options_.shape.block_size + i] = host[i];
    }
    host.assign(options_.shape.block_size, kRubbish);
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
  std::vector<int32_t> positions(options_.shape.num_position_dims);
  if (options_.shape.num_position_dims == 1) positions.clear();
  const int num_before = static_cast<int>(slot.text.size());
  if (row.positions.count > 0) {
    EXPECT_EQ(row.positions.num_dims, options_.shape.num_position_dims);
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

void PuppetDevice::Write(Slot& slot, int position, int32_t content) {
  ASSERT_LT(position, options_.shape.max_seq_len);
  for (int group = 0; group < static_cast<int>(groups_.size()); ++group) {
    if (groups_[group].retention == KvRetention::kCross) continue;
    ASSERT_NE(BlockAt(slot, group, position), 0) << "no block for token " << position;
    Memory(slot, group, position) = slot.is_doomed ? kRubbish : content;
  }
}

void PuppetDevice::RunRow(const ScheduledRow& row, absl::Span<const ScheduledEmbeddings> embeddings,
                          Slot& slot) {
  const std::vector<int32_t> content = ContentOf(row, embeddings, slot);
  slot.text.insert(slot.text.end(), content.begin(), content.end());
  const int end = static_cast<int>(slot.text.size());
  const int first = end - row.query_len();
  for (int i = first; i < end; ++i) ASSERT_NO_FATAL_FAILURE(Write(slot, i, slot.text[i]));
  for (int group = 0; group < static_cast<int>(groups_.size()); ++group) {
    if (groups_[group].retention == KvRetention::kCross) continue;
    if (slot.is_doomed) continue;
    // Checks the keys that the row's first token attends to, up to the row.
    for (int i = static_cast<int>(FirstNeededPosition(groups_[group], first)); i < first; ++i) {
      ASSERT_NE(BlockAt(slot, group, i), 0)
          << "token " << i << " of group " << group << " has no block";
      ASSERT_EQ(Memory(slot, group, i), slot.text[i])
          << "token " << i << " of group " << group << " has been overwritten";
    }
  }
}

void PuppetDevice::Join(const ScheduledBatch& batch) {
  for (const SlotId slot : batch.leaves) {
    ASSERT_EQ(slots_.erase(slot.value()), 1u) << "slot " << slot << " leaves, but never joined";
  }
  std::set<int> joined;
  for (const SlotJoin& join : batch.joins) {
    ASSERT_FALSE(slots_.contains(join.slot.value())) << "slot " << join.slot << " joined twice";
    joined.insert(join.slot.value());
    slots_[join.slot.value()] = {.sampling = join.sampling,
                                 .sample_index = join.sample_index,
                                 .num_encoder_tokens = join.num_encoder_tokens,
                                 .position_delta = join.position_delta,
                                 .num_hits = join.seq_len};
  }
  for (const LogitsRequest& request : batch.logits_requests) {
    const int slot = request.slot.value();
    ASSERT_EQ(joined.erase(slot), 1u)
        << "slot " << slot << " does not join, or has two logits requests";
    slots_[slot].logits = LogitsOf(request);
    ASSERT_EQ(static_cast<int64_t>(request.output.size()), slots_[slot].sample_index);
  }
}

void PuppetDevice::Choose(const ScheduledRow& row, Slot& slot, bool is_nan, Output& output) {
  const absl::Span<const int32_t> text = slot.text;
  const int num_known_top = slot.logits.params.num_known_log_probs;
  // Scores `token` after the first `count` tokens of the text.
  const auto score = [&](LogProbArrays& arrays, size_t count, int32_t token, int num_top) {
    if (num_top < 0 || token < 0 || slot.is_doomed) {
      arrays.Add(nullptr);
      return;
    }
    const TokenLogProbs log_probs = PuppetLogProbs(text.first(count), token, num_top);
    arrays.Add(&log_probs);
  };
  for (int i = 0; i < row.num_earlier_logits(); ++i) {
    const size_t count = text.size() - static_cast<size_t>(row.query_len()) + i + 1;
    score(output.earlier, count, text[count], num_known_top);
  }
  if (row.output == RowOutput::kNone) {
    ASSERT_TRUE(row.allowed_tokens.empty());
    output.tokens.push_back(-1);
    score(output.log_probs, text.size(), row.next_token, num_known_top);
    return;
  }
  ASSERT_EQ(row.next_token, -1);
  ASSERT_TRUE(row.allowed_tokens.empty() ||
              static_cast<int>(row.allowed_tokens.size()) == options_.shape.mask_words);
  const std::optional<int32_t> token =
      slot.is_doomed ? 0
                     : PuppetToken(FindInput(slot), slot.text, slot.sampling, slot.sample_index,
                                   slot.logits, row.allowed_tokens);
  slot.last_token = token.value_or(0);
  ++slot.sample_index;
  if (HasPenalties(slot.logits.params)) slot.logits.output.push_back(slot.last_token);
  slot.is_doomed |= !token.has_value();
  output.tokens.push_back(is_nan || !token.has_value() ? -2 : slot.last_token);
  score(output.log_probs, text.size(), slot.last_token, slot.logits.params.num_log_probs);
}

void PuppetDevice::AddNewTokens(absl::Span<const int32_t> tokens, Output& output) const {
  const size_t stride = 1 + static_cast<size_t>(options_.policy.speculation->num_drafts);
  output.num_new_tokens.push_back(static_cast<int32_t>(tokens.size()));
  output.new_tokens.insert(output.new_tokens.end(), tokens.begin(), tokens.end());
  output.new_tokens.resize(stride * output.num_new_tokens.size(), kRubbish);
}

void PuppetDevice::RunDrafts(const ScheduledRow& row, Slot& slot, bool is_nan, Output& output) {
  ASSERT_TRUE(row.tokens.empty() && row.output == RowOutput::kToken &&
              row.logits == RowLogits::kLast && row.next_token == -1 && row.allowed_tokens.empty());
  ASSERT_TRUE(slot.logits.params == LogitsParams() && slot.logits.stages == 0);
  // At most one draft per tree level is right. After verification, the keys of the accepted path
  // come first and wrong drafts follow, as for a chain.
  const std::vector<int>& levels = options_.shape.drafts.level_drafts;
  const int num_drafts = row.draft_count();
  int num_levels = num_drafts;
  if (!levels.empty() && row.drafts.empty()) {
    num_levels =
        static_cast<int>(std::find(levels.begin(), levels.end(), row.num_drafts) - levels.begin()) +
        1;
  }
  ASSERT_LE(num_levels, options_.policy.speculation->num_drafts) << num_drafts << " drafts";
  num_drafts_ += num_drafts;
  ASSERT_NO_FATAL_FAILURE(RunRow({.slot = row.slot}, {}, slot));
  const int num_before = static_cast<int>(slot.text.size());
  std::vector<int32_t> new_tokens;
  bool is_right = true;
  for (int i = 0; i <= num_drafts; ++i) {
    if (is_right) {
      slot.last_token = slot.is_doomed ? 0
                                       : *PuppetToken(FindInput(slot), slot.text, slot.sampling,
                                                      slot.sample_index);
      ++slot.sample_index;
      new_tokens.push_back(slot.last_token);
    }
    if (i == num_drafts) break;
    const bool draws_right = row.drafts.empty() ? static_cast<int>(rng_() % 1000) < right_drafts_
                                                : row.drafts[i] == slot.last_token;
    is_right = is_right && draws_right && !slot.is_doomed && i < num_levels;
    const int32_t draft = is_right             ? slot.last_token
                          : row.drafts.empty() ? (slot.last_token + 1 + rng_() % 7) % kPuppetVocab
                                               : row.drafts[i];
    const int32_t content = ContentOf({.tokens = absl::MakeConstSpan(&draft, 1)}, {}, slot)[0];
    ASSERT_NO_FATAL_FAILURE(Write(slot, num_before + i, content));
    if (is_right) slot.text.push_back(content);
  }
  output.tokens.push_back(is_nan ? -2 : slot.last_token);
  if (is_nan) new_tokens.clear();
  AddNewTokens(new_tokens, output);
  for (int i = 0; i < num_drafts; ++i) output.earlier.Add(nullptr);
  output.log_probs.Add(nullptr);
}

void PuppetDevice::Launch(const ScheduledBatch& batch, const Fate& fate) {
  const absl::StatusOr<StepDemand> demand = mirror_.Advance(batch);
  ASSERT_TRUE(demand.ok()) << "a runner would refuse the batch: " << demand.status();
  ASSERT_NO_FATAL_FAILURE(Join(batch));
  for (const BlockTableUpdate& update : batch.updates) {
    slots_[update.slot.value()].blocks[{update.group, update.column}] = update.block.value();
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
  Output output;
  int num_tokens = 0;
  int num_earlier_logits = 0;
  const bool has_drafts =
      std::any_of(batch.rows.begin(), batch.rows.end(),
                  [](const ScheduledRow& row) { return row.draft_count() > 0; });
  std::set<int> seen;
  size_t next_range = 0;  // index into batch.embeddings
  for (const ScheduledRow& row : batch.rows) {
    ASSERT_TRUE(slots_.contains(row.slot.value())) << "a row's slot never joined";
    ASSERT_TRUE(seen.insert(row.slot.value()).second) << "slot " << row.slot << " has two rows";
    Slot& slot = slots_[row.slot.value()];
    const bool tells = row.output == RowOutput::kToken ||
                       (slot.logits.params.num_known_log_probs >= 0 && row.is_scored());
    const bool is_nan = tells && fate.nan_rows.contains(static_cast<int>(output.tokens.size()));
    slot.is_doomed |= fate.fails || is_nan;
    const size_t first_range = next_range;
    while (next_range < batch.embeddings.size() &&
           batch.embeddings[next_range].row == static_cast<int>(output.tokens.size())) {
      ++next_range;
    }
    num_tokens += row.query_len();
    if (row.draft_count() > 0) {
      ASSERT_NO_FATAL_FAILURE(RunDrafts(row, slot, is_nan, output));
      continue;
    }
    ASSERT_NO_FATAL_FAILURE(
        RunRow(row, batch.embeddings.subspan(first_range, next_range - first_range), slot));
    num_earlier_logits += row.num_earlier_logits();
    ASSERT_NO_FATAL_FAILURE(Choose(row, slot, is_nan, output));
    if (has_drafts) {
      const int32_t token = output.tokens.back();
      AddNewTokens(absl::MakeConstSpan(&token, token < 0 ? 0 : 1), output);
    }
  }
  ASSERT_LE(num_tokens, options_.shape.max_num_tokens);
  ASSERT_EQ(next_range, batch.embeddings.size()) << "embeddings without a row";
  ASSERT_LE(num_earlier_logits, options_.shape.max_earlier_logits);
  Step step = {.output = std::move(output),
               .unsettled = {mirror_.unsettled_rows().begin(), mirror_.unsettled_rows().end()}};
  if (fate.fails) step.output = absl::InternalError("the step failed");
  pending_.push_back(std::move(step));
}

absl::StatusOr<std::vector<int32_t>> PuppetDevice::Await() {
  Step step = std::move(pending_.front());
  pending_.pop_front();
  if (!step.output.ok()) return step.output.status();
  awaited_ = *std::move(step.output);
  for (const UnsettledRow& row : step.unsettled) {
    mirror_.Settle(row, std::max(awaited_.num_new_tokens[row.row], 1));
  }
  return awaited_.tokens;
}

StepResult PuppetDevice::output() const {
  return {.tokens = awaited_.tokens,
          .num_new_tokens = awaited_.num_new_tokens,
          .new_tokens = awaited_.new_tokens,
          .new_tokens_stride = 1 + options_.policy.speculation->num_drafts,
          .log_probs = awaited_.log_probs.View(),
          .earlier_log_probs = awaited_.earlier.View()};
}

}  // namespace reprise
