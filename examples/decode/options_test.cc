#include "examples/decode/options.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "examples/decode/engine_flags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

std::string Problem(const DecodeArguments& arguments) {
  const auto options = MakeDecodeOptions(arguments);
  EXPECT_FALSE(options.ok());
  return std::string(options.status().message());
}

DecodeOptions Made(const DecodeArguments& arguments) {
  const auto options = MakeDecodeOptions(arguments);
  EXPECT_TRUE(options.ok()) << options.status();
  return options.value_or(DecodeOptions{});
}

// The options of a command line without its first word.
absl::StatusOr<DecodeOptions> OptionsOf(std::vector<const char*> words) {
  words.insert(words.begin(), "decode");
  const absl::StatusOr<ParsedFlags> flags =
      ParseDecodeFlags(static_cast<int>(words.size()), words.data());
  if (!flags.ok()) return flags.status();
  return MakeDecodeOptions(flags->arguments);
}

std::string ProblemOf(const std::vector<const char*>& words) {
  const auto options = OptionsOf(words);
  EXPECT_FALSE(options.ok());
  return std::string(options.status().message());
}

ModelEngineOptions EngineOf(const std::vector<const char*>& words) {
  const auto options = OptionsOf(words);
  EXPECT_TRUE(options.ok()) << options.status();
  return options.ok() ? options->engine : ModelEngineOptions();
}

TEST(DecodeOptionsTest, WithoutArgumentsModelAndPromptAreLeftToTheProgram) {
  const DecodeOptions options = Made({});
  EXPECT_EQ(options.model, std::nullopt);
  EXPECT_THAT(options.prompts, IsEmpty());
  EXPECT_EQ(options.dtype, std::nullopt);
  EXPECT_EQ(options.device, DeviceChoice::kAuto);
  EXPECT_EQ(options.engine.runner.graphs.mode, std::nullopt);
  EXPECT_EQ(options.stop, StopChoice::kAtEndOfText);
  EXPECT_EQ(options.output, OutputChoice::kText);
  EXPECT_EQ(options.sampling.temperature, 0);
  EXPECT_EQ(options.sampling.seed, std::nullopt);
  EXPECT_EQ(options.num_log_probs, -1);
  EXPECT_EQ(options.perplexity, std::nullopt);
}

TEST(DecodeOptionsTest, RanksAreThoseOfALauncherUnlessGiven) {
  EXPECT_EQ(Made({}).num_ranks, std::nullopt);
  EXPECT_EQ(Made({.ranks = 4}).num_ranks, 4);
  const auto context_ranks = [](const std::vector<const char*>& words) {
    return EngineOf(words).runner.ranks.context_ranks;
  };
  EXPECT_EQ(context_ranks({}), 1);
  EXPECT_EQ(context_ranks({"--parallel=context"}), RankOptions::kAllRanks);
  EXPECT_EQ(context_ranks({"--context_ranks=2", "--parallel=context"}), 2);
}

TEST(DecodeOptionsTest, AnIdleEngineSpeaksWellBeforeTheTimeoutOfRanks) {
  EXPECT_EQ(Made({}).rank_timeout, absl::Seconds(60));
  EXPECT_EQ(IdleInterval(Made({})), absl::Seconds(5));
  EXPECT_EQ(IdleInterval(Made({.rank_timeout = 3})), absl::Seconds(1));
}

TEST(DecodeOptionsTest, TakesEveryFlag) {
  const DecodeOptions options = Made({.model = "/m",
                                      .prompt_tokens = "1,2",
                                      .max_new_tokens = 7,
                                      .ignore_eos = true,
                                      .add_special_tokens = false,
                                      .temperature = 0.5,
                                      .top_k = 3,
                                      .top_p = 0.25,
                                      .min_p = 0.125,
                                      .seed = std::numeric_limits<uint64_t>::max(),
                                      .repetition_penalty = 1.5,
                                      .presence_penalty = -0.5,
                                      .frequency_penalty = 0.25,
                                      .stops = {"a", "b"},
                                      .stop_tokens = "3,4",
                                      .include_stop = true,
                                      .log_probs = 20,
                                      .dtype = DType::kBFloat16,
                                      .device = DeviceChoice::kCuda,
                                      .engine = {.scheduler = {.prefill_chunk = 3}},
                                      .dump_logits = "/l",
                                      .trace = "/t",
                                      .json = true});
  EXPECT_EQ(options.model, "/m");
  EXPECT_THAT(options.prompts, ElementsAre(Prompt{.content = TokenList{1, 2}}));
  EXPECT_EQ(options.max_new_tokens, 7);
  EXPECT_EQ(options.stop, StopChoice::kAtLengthOnly);
  EXPECT_FALSE(options.adds_special_tokens);
  EXPECT_EQ(options.sampling.temperature, 0.5f);
  EXPECT_EQ(options.sampling.top_k, 3);
  EXPECT_EQ(options.sampling.top_p, 0.25f);
  EXPECT_EQ(options.sampling.min_p, 0.125f);
  EXPECT_EQ(options.sampling.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(options.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(options.sampling.presence_penalty, -0.5f);
  EXPECT_EQ(options.sampling.frequency_penalty, 0.25f);
  EXPECT_THAT(options.stops.texts, ElementsAre("a", "b"));
  EXPECT_TRUE(options.stops.is_included);
  EXPECT_THAT(options.stop_tokens, ElementsAre(3, 4));
  EXPECT_EQ(options.num_log_probs, 20);
  EXPECT_EQ(options.dtype, DType::kBFloat16);
  EXPECT_EQ(options.device, DeviceChoice::kCuda);
  EXPECT_EQ(options.engine.scheduler.prefill_chunk, 3);
  EXPECT_EQ(options.dump_logits, "/l");
  EXPECT_EQ(options.trace, "/t");
  EXPECT_EQ(options.output, OutputChoice::kJson);
}

TEST(DecodeOptionsTest, ValuesOutOfRangeAreNamed) {
  EXPECT_EQ(Problem({.max_new_tokens = 0}), "--max_new_tokens: expected at least 1, got 0");
  EXPECT_EQ(Problem({.top_k = -1}), "--top_k: expected at least 0, got -1");
  EXPECT_EQ(ProblemOf({"--ranks=0"}), "--ranks: expected at least 1, got 0");
  EXPECT_THAT(ProblemOf({"--parallel=pipeline"}),
              StartsWith("--parallel: expected tensor, context, got"));
  EXPECT_EQ(ProblemOf({"--parallel=context", "--context_ranks=0"}),
            "--context_ranks: expected at least 1, got 0");
  EXPECT_EQ(ProblemOf({"--context_ranks=2"}),
            "--context_ranks: expected --parallel=context with it");
  EXPECT_EQ(ProblemOf({"--rank_timeout=0"}), "--rank_timeout: expected at least 1, got 0");
  EXPECT_EQ(ProblemOf({"--block_size=0"}), "--block_size: expected at least 1, got 0");
  EXPECT_EQ(ProblemOf({"--num_blocks=1"}), "--num_blocks: expected at least 2, got 1");
  EXPECT_EQ(ProblemOf({"--prefill_chunk=-1"}), "--prefill_chunk: expected at least 0, got -1");
  EXPECT_THAT(ProblemOf({"--dtype=float64"}),
              AllOf(StartsWith("--dtype: expected auto, float32"), HasSubstr("got \"float64\"")));
  EXPECT_THAT(ProblemOf({"--device=tpu"}), StartsWith("--device: expected auto, cpu, cuda, got"));
  EXPECT_THAT(ProblemOf({"--graphs=yes"}), StartsWith("--graphs: expected on, off, got"));
}

TEST(DecodeOptionsTest, TheHelpShowsTheDefaultsOfTheOptions) {
  const DecodeArguments defaults;
  for (const EngineFlag& flag : EngineFlags()) {
    if (*flag.default_text == '\0') continue;
    DecodeArguments arguments;
    EXPECT_TRUE(flag.set(flag.name, flag.default_text, arguments).ok()) << flag.name;
    EXPECT_EQ(arguments.engine.runner.cache.block_size, defaults.engine.runner.cache.block_size);
    EXPECT_EQ(arguments.engine.runner.graphs.mode, defaults.engine.runner.graphs.mode);
    EXPECT_EQ(arguments.rank_timeout, defaults.rank_timeout);
  }
}

TEST(DecodeOptionsTest, TakesTheFlagsOfTheRunner) {
  const ModelEngineOptions engine =
      EngineOf({"--max_num_tokens=64", "--max_prefill_tokens_while_decoding=7",
                "--kv_dtype=fp8_e4m3", "--kv_memory_gb=1.5", "--kv_order=hnd", "--kv_form=packed",
                "--kv_scales=per_head", "--kv_calibration", "--graph_memory_gb=0.25",
                "--num_swap_blocks=3", "--graph_sizes=1,8", "--mixed_graphs=off", "--cascade=on",
                "--steps_in_flight=2", "--prefix_reuse=off", "--batch_invariant",
                "--attention_outside_graphs", "--check_replays", "--linear_choices=/c"});
  const ModelRunnerOptions& runner = engine.runner;
  EXPECT_EQ(runner.max_num_tokens, 64);
  EXPECT_EQ(engine.scheduler.max_prefill_tokens_while_decoding, 7);
  EXPECT_EQ(runner.cache.dtype, DType::kFp8E4M3);
  EXPECT_EQ(runner.cache.size, BlockMemory(NumBytes{1'500'000'000}));
  EXPECT_EQ(runner.cache.order, KvOrder::kHND);
  EXPECT_EQ(runner.cache.form, KvForm::kPacked);
  EXPECT_EQ(runner.cache.scale_shape, KvScaleShape::kPerHead);
  EXPECT_EQ(runner.cache.calibration, KvCalibration::kFirstStep);
  EXPECT_EQ(runner.graphs.memory_budget_bytes, 250'000'000);
  EXPECT_EQ(runner.cache.swap, BlockMemory(NumBlocks{3}));
  EXPECT_THAT(runner.graphs.sizes, ElementsAre(1, 8));
  EXPECT_EQ(runner.graphs.mixed, MixedGraphs::kOff);
  EXPECT_EQ(runner.device.cascade, CascadeMode::kAuto);
  EXPECT_EQ(runner.max_steps_in_flight, 2);
  EXPECT_EQ(engine.scheduler.prefix_reuse, PrefixReuse::kOff);
  EXPECT_EQ(runner.device.batch_invariance, BatchInvariance::kOn);
  EXPECT_EQ(runner.debug.attention, AttentionLaunch::kBetweenGraphs);
  EXPECT_EQ(runner.debug.replay_check, ReplayCheck::kEveryReplay);
  EXPECT_EQ(runner.device.linear_choices_file, "/c");
  EXPECT_EQ(EngineOf({"--num_blocks=9"}).runner.cache.size, BlockMemory(NumBlocks{9}));
  EXPECT_EQ(EngineOf({"--graphs=off"}).runner.graphs.mode, GraphSetOptions::Mode::kOff);
  EXPECT_EQ(EngineOf({"--partial_hits=copied"}).scheduler.partial_hits, PartialHits::kCopied);
}

TEST(DecodeOptionsTest, WithoutFlagsTheRunnerHasItsOwnOptions) {
  const ModelEngineOptions engine = EngineOf({});
  EXPECT_EQ(engine.runner.device.linear_choices_file, "");
  EXPECT_EQ(engine.runner.device.cascade, std::nullopt);
  EXPECT_EQ(engine.runner.debug.attention, AttentionLaunch::kInGraphs);
  EXPECT_EQ(engine.scheduler.partial_hits, PartialHits::kNone);
  EXPECT_EQ(EngineOf({"--nobatch_invariant"}).runner.device.batch_invariance,
            BatchInvariance::kOff);
}

TEST(DecodeOptionsTest, ServeSetsTheSizesOfItsEngine) {
  const ModelEngineOptions engine =
      EngineOf({"serve", "--max_num_seqs=3", "--max_seq_len=5", "--max_waiting=7"});
  EXPECT_EQ(engine.runner.max_num_seqs, 3);
  EXPECT_EQ(engine.runner.max_seq_len, 5);
  EXPECT_EQ(engine.scheduler.max_waiting, 7);
  EXPECT_EQ(EngineOf({"serve"}).runner.max_num_seqs, kServingRows);
  EXPECT_THAT(ProblemOf({"serve", "--max_num_seqs=0"}),
              StartsWith("--max_num_seqs: expected 1 to"));
}

TEST(DecodeOptionsTest, WrongFlagsOfTheRunnerAreNamed) {
  EXPECT_THAT(ProblemOf({"--kv_dtype=int3"}), StartsWith("--kv_dtype: expected float32"));
  EXPECT_THAT(ProblemOf({"--kv_memory_gb=0"}), StartsWith("--kv_memory_gb: expected a number"));
  EXPECT_THAT(ProblemOf({"--kv_memory_gb=much"}), HasSubstr("--kv_memory_gb"));
  EXPECT_THAT(ProblemOf({"--kv_order=dnh"}), StartsWith("--kv_order: expected nhd, hnd, got"));
  EXPECT_THAT(ProblemOf({"--kv_form=latent"}), StartsWith("--kv_form: expected pair, packed"));
  EXPECT_THAT(ProblemOf({"--kv_scales=per_block"}), StartsWith("--kv_scales: expected per_layer"));
  EXPECT_EQ(
      ProblemOf({"--kv_scales=per_head"}),
      "--kv_scales: per_head requires an fp8 cache: expected --kv_dtype fp8_e4m3 or fp8_e5m2, "
      "got none");
  EXPECT_EQ(
      ProblemOf({"--kv_scales=per_head", "--kv_dtype=bfloat16"}),
      "--kv_scales: per_head requires an fp8 cache: expected --kv_dtype fp8_e4m3 or fp8_e5m2, "
      "got bfloat16");
  EXPECT_THAT(ProblemOf({"--graph_memory_gb=-1"}),
              StartsWith("--graph_memory_gb: expected a number"));
  EXPECT_EQ(ProblemOf({"--kv_memory_gb=1", "--num_blocks=9"}),
            "--kv_memory_gb and --num_blocks exclude each other");
  EXPECT_THAT(ProblemOf({"--linear_choices="}), StartsWith("--linear_choices: expected a file"));
  EXPECT_THAT(ProblemOf({"--graph_sizes=1,x"}), StartsWith("--graph_sizes: expected a list"));
  EXPECT_EQ(ProblemOf({"--max_prefill_tokens_while_decoding=-1"}),
            "--max_prefill_tokens_while_decoding: expected at least 0, got -1");
  EXPECT_THAT(ProblemOf({"--partial_hits=on"}),
              StartsWith("--partial_hits: expected none, copied"));
  EXPECT_EQ(ProblemOf({"--partial_hits=copied", "--prefix_reuse=off"}),
            "--partial_hits: expected --prefix_reuse=on with copied");
  EXPECT_THAT(ProblemOf({"--cascade=maybe"}), StartsWith("--cascade: expected auto, on, off"));
  EXPECT_THAT(ProblemOf({"bench", "--batches=0"}), StartsWith("--batches: expected a list"));
  EXPECT_THAT(Problem({.system = "\xff"}), StartsWith("--system is not UTF-8"));
}

TEST(DecodeOptionsTest, NumbersThatAreNoneAreRefused) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double temperature : {-0.1, infinity, std::nan("")}) {
    EXPECT_THAT(Problem({.temperature = temperature}), StartsWith("--temperature: expected"));
  }
  for (const double top_p : {0.0, 1e-50, -1.0, 1.0001, infinity, std::nan("")}) {
    EXPECT_THAT(Problem({.top_p = top_p}), StartsWith("--top_p: expected"));
  }
  for (const double penalty : {-1e7, infinity, std::nan("")}) {
    EXPECT_THAT(Problem({.min_p = penalty}), StartsWith("--min_p: expected"));
    EXPECT_THAT(Problem({.repetition_penalty = penalty}),
                StartsWith("--repetition_penalty: expected"));
    EXPECT_THAT(Problem({.presence_penalty = penalty}), StartsWith("--presence_penalty: expected"));
    EXPECT_THAT(Problem({.frequency_penalty = penalty}),
                StartsWith("--frequency_penalty: expected"));
  }
  EXPECT_THAT(Problem({.repetition_penalty = 0}), StartsWith("--repetition_penalty: expected"));
}

TEST(DecodeOptionsTest, FlagsThatContradictEachOtherAreNamed) {
  EXPECT_THAT(Problem({.log_probs = 1}), HasSubstr("--json"));
  EXPECT_THAT(Problem({.log_probs = 21, .json = true}), HasSubstr("expected -1 to 20, got 21"));
  EXPECT_THAT(Problem({.stops = {"a", ""}}), StartsWith("--stop: expected a text"));
  EXPECT_EQ(Problem({.stops = {"\xff"}}), "--stop is not UTF-8");
  EXPECT_THAT(Problem({.stop_tokens = "1,-2"}), StartsWith("--stop_tokens: entry 2: expected"));
  EXPECT_THAT(Problem({.stop_tokens = "1", .perplexity = "/t"}), StartsWith("--stop_tokens is of"));
  EXPECT_THAT(Problem({.include_stop = true, .perplexity = "/t"}),
              StartsWith("--include_stop is of"));
  EXPECT_EQ(Made({.perplexity = "/t"}).perplexity, "/t");
  EXPECT_THAT(Problem({.texts = {"a"}, .perplexity = "/t"}),
              HasSubstr("got --prompt and --perplexity"));
  EXPECT_THAT(Problem({.stops = {"a"}, .perplexity = "/t"}), StartsWith("--stop is of"));
  EXPECT_THAT(Problem({.add_special_tokens = false, .perplexity = "/t"}),
              StartsWith("--add_special_tokens is of"));
  EXPECT_THAT(Problem({.dump_logits = "/l", .perplexity = "/t"}), StartsWith("--dump_logits is"));
  EXPECT_THAT(Problem({.log_probs = 1, .perplexity = "/t", .json = true}),
              StartsWith("--log_probs is of"));
}

TEST(DecodeOptionsTest, DraftsAreOfTheTextOrOfAModel) {
  EXPECT_FALSE(Made({}).draft.has_value());
  const DecodeOptions ngram = Made({.draft = "ngram"});
  ASSERT_TRUE(ngram.draft.has_value());
  EXPECT_EQ(ngram.draft->model, std::nullopt);
  EXPECT_EQ(ngram.engine.runner.speculation.max_drafts, 4);
  EXPECT_NE(ngram.engine.runner.speculation.ngram(), nullptr);
  EXPECT_FALSE(ngram.draft->compares_plain);
  const DecodeOptions model = Made({.draft = "/m", .num_draft_tokens = 16, .compare_plain = true});
  ASSERT_TRUE(model.draft.has_value());
  EXPECT_EQ(model.draft->model, "/m");
  EXPECT_EQ(model.engine.runner.speculation.max_drafts, 16);
  EXPECT_TRUE(model.draft->compares_plain);
  for (const int num_tokens : {0, -1, 17}) {
    EXPECT_THAT(Problem({.draft = "ngram", .num_draft_tokens = num_tokens}),
                StartsWith("--num_draft_tokens: expected 1 to 16, got"));
  }
  const DecodeOptions tree = Made({.draft = "/m", .tree = "2,1x3"});
  EXPECT_THAT(tree.engine.runner.speculation.tree, ElementsAre(0, 0, 1, 2, 3, 4));
  EXPECT_EQ(tree.engine.runner.speculation.max_drafts, 6);
  EXPECT_EQ(tree.engine.runner.speculation.shape, DraftShape::kTree);
  EXPECT_EQ(tree.engine.runner.speculation.acceptance, DraftAcceptance::kSameText);
  const DecodeOptions rejection = Made({.draft = "ngram", .acceptance = "rejection"});
  EXPECT_EQ(rejection.engine.runner.speculation.acceptance, DraftAcceptance::kRejection);
  EXPECT_THAT(Problem({.draft = "ngram", .acceptance = "never"}),
              StartsWith("--acceptance: expected same_text or rejection, got never"));
  EXPECT_THAT(Problem({.draft = "/m", .tree = "2x2", .acceptance = "rejection"}),
              StartsWith("--acceptance rejection is of chains"));
  EXPECT_THAT(Problem({.acceptance = "rejection"}), StartsWith("--acceptance is of --draft"));
  for (const char* text : {"", "3", "x", "3x", "x2", "a,2x3", "3,2x4x5", "3,,2x4"}) {
    EXPECT_THAT(Problem({.draft = "/m", .tree = text}),
                StartsWith("--tree: expected WIDTHSxDEPTH, such as 3,2x4, got"));
  }
  EXPECT_THAT(Problem({.draft = "/m", .tree = "2,1x1"}), StartsWith("--tree: number of widths"));
  EXPECT_THAT(Problem({.draft = "/m", .tree = "8,8x2"}), StartsWith("--tree: number of drafts"));
  EXPECT_THAT(Problem({.draft = "ngram", .tree = "2x2"}), HasSubstr("which proposes chains"));
  EXPECT_EQ(Problem({.draft = "/m", .num_draft_tokens = 2, .tree = "2x2"}),
            "--tree and --num_draft_tokens exclude each other");
  EXPECT_EQ(Problem({.tree = "2x2"}), "--tree is of --draft: give both");
  EXPECT_EQ(Problem({.num_draft_tokens = 4}), "--num_draft_tokens is of --draft: give both");
  EXPECT_EQ(Problem({.compare_plain = true}), "--compare_plain is of --draft: give both");
  EXPECT_THAT(Problem({.draft = "ngram", .perplexity = "/t"}), HasSubstr("no --perplexity"));
  EXPECT_THAT(Problem({.draft = "ngram", .dump_logits = "/l"}), HasSubstr("no --dump_logits"));
}

TEST(DecodeOptionsTest, PromptsComeFromOnePlace) {
  EXPECT_THAT(Problem({.texts = {"a"}, .prompt_tokens = "1"}),
              HasSubstr("got --prompt and --prompt_tokens"));
  EXPECT_THAT(Problem({.texts = {"a"}, .prompt_tokens = "1", .batch = "/b"}),
              HasSubstr("got --prompt and --prompt_tokens and --batch"));
}

TEST(DecodeOptionsTest, PromptsThatNoModelTakesAreNamedByNumber) {
  EXPECT_EQ(Problem({.texts = {"a", ""}}), "--prompt: prompt 2 is empty");
  EXPECT_THAT(Problem({.texts = {"\xff"}}), StartsWith("--prompt: prompt 1 is not UTF-8"));
  EXPECT_THAT(Problem({.prompt_tokens = ""}), StartsWith("--prompt_tokens: entry 1"));
}

TEST(DecodeOptionsTest, ReadsTheBatchFile) {
  const std::string path = testing::TempDir() + "/decode_options_batch.jsonl";
  std::ofstream(path) << "\"a\"\n{\"prompt_tokens\": [1], \"forced_tokens\": [2]}\n";
  EXPECT_THAT(
      Made({.batch = path}).prompts,
      ElementsAre(Prompt{.content = "a"}, Prompt{.content = TokenList{1}, .forced_tokens = {2}}));
  EXPECT_THAT(Problem({.batch = path + ".none"}),
              AllOf(StartsWith("--batch: "), HasSubstr(path + ".none")));
}

absl::StatusOr<DecodeArguments> Parsed(const std::vector<const char*>& words) {
  absl::StatusOr<ParsedFlags> flags =
      ParseDecodeFlags(static_cast<int>(words.size()), words.data());
  if (!flags.ok()) return flags.status();
  return std::move(flags->arguments);
}

std::vector<std::string> Texts(const std::vector<const char*>& words) {
  const auto arguments = Parsed(words);
  EXPECT_TRUE(arguments.ok()) << arguments.status();
  return arguments.ok() ? arguments->texts : std::vector<std::string>();
}

std::string ProblemOfFlags(const std::vector<const char*>& words) {
  return std::string(Parsed(words).status().message());
}

TEST(DecodeFlagsTest, RepeatedPromptsAndTextsKeepTheirOrder) {
  EXPECT_THAT(
      Texts({"decode", "--prompt", "a", "b", "--top_k=5", "--prompt=c", "d", "-prompt", "e"}),
      ElementsAre("a", "b", "c", "d", "e"));
}

TEST(DecodeFlagsTest, APromptMayLookLikeAFlagOrAList) {
  EXPECT_THAT(Texts({"decode", "--prompt", "--json", "--prompt=-x", "--prompt", "{}", "--prompt",
                     "[INST] a, b [/INST]"}),
              ElementsAre("--json", "-x", "{}", "[INST] a, b [/INST]"));
}

TEST(DecodeFlagsTest, AnEmptyPromptIsATextToo) {
  EXPECT_THAT(Texts({"decode", "--prompt", "", "--prompt="}), ElementsAre("", ""));
}

TEST(DecodeFlagsTest, AfterTwoDashesEverythingIsAText) {
  EXPECT_THAT(Texts({"decode", "a", "--", "--prompt", "--json"}),
              ElementsAre("a", "--prompt", "--json"));
}

TEST(DecodeFlagsTest, WithoutPromptsThereAreNone) {
  EXPECT_THAT(Texts({"decode", "--json=true"}), IsEmpty());
  EXPECT_THAT(Texts({"decode"}), IsEmpty());
  EXPECT_THAT(Texts({}), IsEmpty());
}

TEST(DecodeFlagsTest, ValuesFollowTheirFlagOrAnEqualsSign) {
  const auto arguments = Parsed({"decode",
                                 "--model",
                                 "/m",
                                 "-prompt_tokens=1,2",
                                 "--max_new_tokens",
                                 "7",
                                 "--temperature=0.5",
                                 "--top_k",
                                 "010",
                                 "--top_p",
                                 "1e-1",
                                 "--seed",
                                 "18446744073709551615",
                                 "--min_p=0.25",
                                 "--repetition_penalty",
                                 "1.5",
                                 "--presence_penalty=-1",
                                 "--frequency_penalty=2",
                                 "--stop",
                                 "--json",
                                 "--stop=b",
                                 "--stop_tokens",
                                 "3,4",
                                 "--include_stop",
                                 "--log_probs=3",
                                 "--perplexity=/t",
                                 "--dtype=float16",
                                 "--device",
                                 "cpu",
                                 "--graphs=off",
                                 "--block_size",
                                 "5",
                                 "--num_blocks=9",
                                 "--prefill_chunk",
                                 "3",
                                 "--draft",
                                 "ngram",
                                 "--num_draft_tokens=3",
                                 "--tree=2x3",
                                 "--acceptance",
                                 "rejection",
                                 "--compare_plain",
                                 "--dump_logits=/l",
                                 "--trace=/t",
                                 "--linear_choices=/c",
                                 "--batch=",
                                 "--ignore_eos",
                                 "--json"});
  ASSERT_TRUE(arguments.ok()) << arguments.status();
  EXPECT_EQ(arguments->model, "/m");
  EXPECT_EQ(arguments->prompt_tokens, "1,2");
  EXPECT_EQ(arguments->batch, "");
  EXPECT_EQ(arguments->max_new_tokens, 7);
  EXPECT_TRUE(arguments->ignore_eos);
  EXPECT_EQ(arguments->temperature, 0.5);
  EXPECT_EQ(arguments->top_k, 10);
  EXPECT_EQ(arguments->top_p, 0.1);
  EXPECT_EQ(arguments->seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(arguments->min_p, 0.25);
  EXPECT_EQ(arguments->repetition_penalty, 1.5);
  EXPECT_EQ(arguments->presence_penalty, -1);
  EXPECT_EQ(arguments->frequency_penalty, 2);
  EXPECT_THAT(arguments->stops, ElementsAre("--json", "b"));
  EXPECT_EQ(arguments->stop_tokens, "3,4");
  EXPECT_TRUE(arguments->include_stop);
  EXPECT_EQ(arguments->log_probs, 3);
  EXPECT_EQ(arguments->perplexity, "/t");
  EXPECT_EQ(arguments->dtype, DType::kFloat16);
  EXPECT_EQ(arguments->device, DeviceChoice::kCpu);
  EXPECT_EQ(arguments->engine.runner.graphs.mode, GraphSetOptions::Mode::kOff);
  EXPECT_EQ(arguments->engine.runner.cache.block_size, 5);
  EXPECT_EQ(arguments->engine.runner.cache.size, BlockMemory(NumBlocks{9}));
  EXPECT_EQ(arguments->engine.scheduler.prefill_chunk, 3);
  EXPECT_EQ(arguments->draft, "ngram");
  EXPECT_EQ(arguments->num_draft_tokens, 3);
  EXPECT_EQ(arguments->tree, "2x3");
  EXPECT_EQ(arguments->acceptance, "rejection");
  EXPECT_TRUE(arguments->compare_plain);
  EXPECT_EQ(arguments->dump_logits, "/l");
  EXPECT_EQ(arguments->trace, "/t");
  EXPECT_EQ(arguments->engine.runner.device.linear_choices_file, "/c");
  EXPECT_TRUE(arguments->json);
  EXPECT_THAT(arguments->texts, IsEmpty());
}

TEST(DecodeFlagsTest, TheLastOfARepeatedFlagCounts) {
  const auto arguments = Parsed({"decode", "--top_k=1", "--json", "--top_k", "2", "--nojson",
                                 "--dtype=a", "--dtype=float16"});
  ASSERT_TRUE(arguments.ok()) << arguments.status();
  EXPECT_EQ(arguments->top_k, 2);
  EXPECT_FALSE(arguments->json);
  EXPECT_EQ(arguments->dtype, DType::kFloat16);
}

TEST(DecodeFlagsTest, WhatIsNoFlagOrNoValueIsNamed) {
  EXPECT_THAT(ProblemOfFlags({"decode", "--no_such_flag"}), HasSubstr("--no_such_flag"));
  EXPECT_THAT(ProblemOfFlags({"decode", "--prompts=x"}), HasSubstr("--prompts=x"));
  EXPECT_THAT(ProblemOfFlags({"decode", "--prompt"}), StartsWith("--prompt must be followed by"));
  EXPECT_THAT(ProblemOfFlags({"decode", "--json", "--top_k"}), StartsWith("--top_k must be"));
  for (const char* const value : {"many", "", "1.5", "99999999999", "0x10", "1 2"}) {
    EXPECT_THAT(ProblemOfFlags({"decode", "--top_k", value}), HasSubstr("--top_k")) << value;
  }
  EXPECT_EQ(ProblemOfFlags({"decode", "--seed=-1"}),
            "--seed: expected an integer in [0, 18446744073709551615], got \"-1\"");
  EXPECT_EQ(ProblemOfFlags({"decode", "--max_new_tokens=99999999999"}),
            "--max_new_tokens: expected a 32-bit integer, got \"99999999999\"");
  EXPECT_EQ(ProblemOfFlags({"decode", "--temperature=warm"}),
            "--temperature: expected a number, got \"warm\"");
  EXPECT_EQ(ProblemOfFlags({"decode", "--num_blocks=3", "--num_blocks=99999999999"}),
            "--num_blocks: expected an integer in [2, 2147483647], got \"99999999999\"");
  EXPECT_EQ(ProblemOfFlags({"decode", "--kv_memory_gb=all"}),
            "--kv_memory_gb: expected a number in (0, 1e+06], got \"all\"");
  EXPECT_EQ(ProblemOfFlags({"decode", "serve", "--max_num_seqs=x"}),
            "--max_num_seqs: expected 1 to 65536, got \"x\"");
  EXPECT_THAT(ProblemOfFlags({"decode", "--json=maybe"}), HasSubstr("json"));
}

TEST(DecodeFlagsTest, HelpIsGivenInPlaceOfARun) {
  const char* const words[] = {"decode", "--help"};
  const auto flags = ParseDecodeFlags(2, words);
  ASSERT_TRUE(flags.ok()) << flags.status();
  ASSERT_TRUE(flags->help.has_value());
  EXPECT_THAT(*flags->help, AllOf(HasSubstr("--prefill_chunk "), HasSubstr("likeliest token")));
}

}  // namespace
}  // namespace reprise
