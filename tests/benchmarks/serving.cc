// Times a whole engine over a Llama with random weights: how many tokens a second it serves, and
// how long users wait for the first token and for each next one.
//
//   serving --device cuda --preset llama-3.1-8b --scenario trace --rows 64 --requests 256
//   serving --device cuda --preset llama-3.1-8b --scenario latency --rows 32
//   serving --device cpu --preset jargon --scenario steady --rows 4 --prompt 32 --output 32
//
//   trace     requests arrive at random (--rate a second; 0: all at once), with prompts and answers
//             of random lengths: log-normal around --prompt and --output, drawn from --seed
//   steady    --rows requests of exactly these lengths, all at once: times are of steps in which
//             every row decodes. Compare with decode_step at the same rows and context, which runs
//             the runner alone
//   latency   --rows requests decode; then prompts of --long_prompt tokens arrive, one after the
//             other. Compares the time between tokens of the former without and with the latter
//
// Prints a JSON line. Times between tokens are of each sequence, by the host's
// clock, when Engine::Step() returns them.

#include <ATen/Parallel.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"
#include "reprise/engine/create_engine.h"
#include "reprise/models/decoder/decoder_model.h"
#include "reprise/models/decoder/decoder_weights.h"
#include "reprise/models/decoder/public_configs.h"

ABSL_FLAG(std::string, device, "cuda", "cpu or cuda");
ABSL_FLAG(std::string, preset, "llama-3.1-8b", "llama-3.1-8b, llama-3.2-1b or jargon");
ABSL_FLAG(std::string, dtype, "bfloat16", "bfloat16, float16 or float32");
ABSL_FLAG(std::string, scenario, "trace", "trace, steady or latency");
ABSL_FLAG(int, rows, 64, "the most sequences of a step");
ABSL_FLAG(int, requests, 256, "trace: requests");
ABSL_FLAG(double, rate, 0, "trace: arrivals a second; 0: all at once");
ABSL_FLAG(int, prompt, 512, "tokens of a prompt");
ABSL_FLAG(int, output, 128, "tokens of an answer");
ABSL_FLAG(int, long_prompt, 8192, "latency: tokens of the prompts that arrive later");
ABSL_FLAG(int, num_long, 8, "latency: so many of them");
ABSL_FLAG(int, max_tokens, 2048, "the most tokens of a step");
ABSL_FLAG(int, budget, 0, "the most prompt tokens of a step that has decodes; 0: what is left");
ABSL_FLAG(int, seed, 1, "of lengths, arrivals and prompts");

namespace reprise {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Of samples in seconds, in milliseconds; 0 without any.
double PercentileMs(std::vector<double> samples, double share) {
  if (samples.empty()) return 0;
  const auto at = samples.begin() + static_cast<int64_t>(share * (samples.size() - 1));
  std::nth_element(samples.begin(), at, samples.end());
  return *at * 1e3;
}

// Requests of an engine, when each token of them came, and what came when.
class Clients {
 public:
  explicit Clients(Engine& engine) : engine_(engine) {}

  absl::Status Add(Request request) {
    REPRISE_ASSIGN_OR_RETURN(const SequenceId id, engine_.Add(std::move(request)));
    times_[id] = {.last = Clock::now()};
    return absl::OkStatus();
  }

  absl::Status Step() {
    events_.clear();
    REPRISE_RETURN_IF_ERROR(engine_.Step(events_));
    const Clock::time_point now = Clock::now();
    for (const TokenEvent& event : events_) {
      REPRISE_RETURN_IF_ERROR(event.error);
      if (!event.token.has_value()) continue;
      Times& times = times_[event.sequence];
      const double seconds = std::chrono::duration<double>(now - times.last).count();
      (times.num_tokens == 0 ? first_token_ : between_tokens_).push_back(seconds);
      times.last = now;
      ++times.num_tokens;
      ++num_tokens_;
    }
    return absl::OkStatus();
  }

  // Times from now on.
  void Forget() {
    first_token_.clear();
    between_tokens_.clear();
    num_tokens_ = 0;
  }

  int64_t num_tokens() const { return num_tokens_; }
  const std::vector<double>& first_token() const { return first_token_; }
  const std::vector<double>& between_tokens() const { return between_tokens_; }

 private:
  struct Times {
    Clock::time_point last;
    int num_tokens = 0;
  };

  Engine& engine_;
  std::map<SequenceId, Times> times_;
  std::vector<TokenEvent> events_;
  std::vector<double> first_token_;
  std::vector<double> between_tokens_;
  int64_t num_tokens_ = 0;
};

class Serving {
 public:
  explicit Serving(DecoderModel* model) : model_(*model), rng_(absl::GetFlag(FLAGS_seed)) {}

  absl::StatusOr<nlohmann::json> Run(const std::string& scenario) {
    if (scenario == "trace") return Trace();
    if (scenario == "steady") return Steady();
    if (scenario == "latency") return Latency();
    return absl::InvalidArgumentError("--scenario must be trace, steady or latency");
  }

 private:
  absl::StatusOr<std::unique_ptr<Engine>> NewEngine(int max_seq_len) {
    const int rows = absl::GetFlag(FLAGS_rows);
    ModelEngineOptions options;
    options.runner.max_num_seqs = rows;
    options.runner.max_num_tokens = std::max(absl::GetFlag(FLAGS_max_tokens), rows);
    options.runner.max_seq_len = max_seq_len;
    options.scheduler.max_prefill_tokens_while_decoding = absl::GetFlag(FLAGS_budget);
    options.scheduler.prefix_reuse = PrefixReuse::kOff;  // prompts are random
    return CreateEngine(&model_, options);
  }

  Request NewRequest(int prompt, int output) {
    Request request = {.max_new_tokens = output};
    std::uniform_int_distribution<int32_t> token(0, model_.spec().vocab_size - 1);
    for (int i = 0; i < prompt; ++i) request.prompt.push_back(token(rng_));
    return request;
  }

  // Log-normal, with the mean of a flag.
  int RandomLength(int mean, int most) {
    constexpr double kSigma = 0.8;
    std::lognormal_distribution<double> length(std::log(mean) - kSigma * kSigma / 2, kSigma);
    return std::clamp(static_cast<int>(length(rng_)), 1, most);
  }

  // What the engine counted in between two calls.
  static nlohmann::json Shares(const EngineMetrics& before, const EngineMetrics& after) {
    const double steps = static_cast<double>(after.num_steps - before.num_steps);
    const double eager = static_cast<double>(after.num_eager_steps - before.num_eager_steps);
    return {{"steps", steps}, {"eager_share", steps > 0 ? eager / steps : 0}};
  }

  static void AddTimes(const Clients& clients, nlohmann::json& json) {
    json["first_token_ms"] = {{"p50", PercentileMs(clients.first_token(), 0.5)},
                              {"p99", PercentileMs(clients.first_token(), 0.99)}};
    json["between_tokens_ms"] = {{"p50", PercentileMs(clients.between_tokens(), 0.5)},
                                 {"p99", PercentileMs(clients.between_tokens(), 0.99)}};
  }

  absl::StatusOr<nlohmann::json> Trace() {
    const int max_prompt = 4 * absl::GetFlag(FLAGS_prompt);
    const int max_output = 4 * absl::GetFlag(FLAGS_output);
    REPRISE_ASSIGN_OR_RETURN(const auto engine, NewEngine(max_prompt + max_output));
    std::vector<Request> requests;
    std::vector<double> arrivals;
    int64_t num_prompt_tokens = 0;
    double arrival = 0;
    const double rate = absl::GetFlag(FLAGS_rate);
    for (int i = 0; i < absl::GetFlag(FLAGS_requests); ++i) {
      const int prompt = RandomLength(absl::GetFlag(FLAGS_prompt), max_prompt);
      const int output = RandomLength(absl::GetFlag(FLAGS_output), max_output);
      requests.push_back(NewRequest(prompt, output));
      num_prompt_tokens += prompt;
      if (rate > 0) arrival += std::exponential_distribution<double>(rate)(rng_);
      arrivals.push_back(arrival);
    }
    Clients clients(*engine);
    const EngineMetrics before = engine->metrics();
    const Clock::time_point begin = Clock::now();
    size_t next = 0;
    while (next < requests.size() || engine->has_work()) {
      while (next < requests.size() && arrivals[next] <= SecondsSince(begin)) {
        REPRISE_RETURN_IF_ERROR(clients.Add(std::move(requests[next++])));
      }
      if (engine->has_work()) REPRISE_RETURN_IF_ERROR(clients.Step());
    }
    const double seconds = SecondsSince(begin);
    nlohmann::json json = Shares(before, engine->metrics());
    json["seconds"] = seconds;
    json["prompt_tokens"] = num_prompt_tokens;
    json["tokens"] = clients.num_tokens();
    json["tokens_per_s"] = clients.num_tokens() / seconds;
    json["all_tokens_per_s"] = (clients.num_tokens() + num_prompt_tokens) / seconds;
    AddTimes(clients, json);
    return json;
  }

  absl::StatusOr<nlohmann::json> Steady() {
    const int rows = absl::GetFlag(FLAGS_rows);
    const int prompt = absl::GetFlag(FLAGS_prompt);
    const int output = absl::GetFlag(FLAGS_output);
    REPRISE_ASSIGN_OR_RETURN(const auto engine, NewEngine(prompt + output));
    Clients clients(*engine);
    for (int i = 0; i < rows; ++i) REPRISE_RETURN_IF_ERROR(clients.Add(NewRequest(prompt, output)));
    // Until every row has its first token, and the first is not yet near its end.
    while (static_cast<int>(clients.first_token().size()) < rows) {
      REPRISE_RETURN_IF_ERROR(clients.Step());
    }
    clients.Forget();
    const EngineMetrics before = engine->metrics();
    const Clock::time_point begin = Clock::now();
    int num_steps = 0;
    while (engine->metrics().num_running == rows) {
      REPRISE_RETURN_IF_ERROR(clients.Step());
      ++num_steps;
    }
    const double seconds = SecondsSince(begin);
    nlohmann::json json = Shares(before, engine->metrics());
    json["seconds"] = seconds;
    json["tokens"] = clients.num_tokens();
    json["tokens_per_s"] = clients.num_tokens() / seconds;
    json["step_ms"] = num_steps > 0 ? seconds * 1e3 / num_steps : 0;
    AddTimes(clients, json);
    return json;
  }

  absl::StatusOr<nlohmann::json> Latency() {
    constexpr int kNumQuietSteps = 200;
    const int rows = absl::GetFlag(FLAGS_rows);
    const int prompt = absl::GetFlag(FLAGS_prompt);
    const int long_prompt = absl::GetFlag(FLAGS_long_prompt);
    const int output = 20000;  // never reached
    REPRISE_ASSIGN_OR_RETURN(
        const auto engine,
        NewEngine(std::min(model_.spec().max_position, std::max(long_prompt + 8, prompt + 8192))));
    Clients clients(*engine);
    // One row is kept for those that arrive later.
    for (int i = 0; i < rows - 1; ++i) {
      REPRISE_RETURN_IF_ERROR(clients.Add(NewRequest(prompt, output)));
    }
    while (static_cast<int>(clients.first_token().size()) < rows - 1) {
      REPRISE_RETURN_IF_ERROR(clients.Step());
    }
    clients.Forget();
    for (int i = 0; i < kNumQuietSteps; ++i) REPRISE_RETURN_IF_ERROR(clients.Step());
    const double quiet_p50 = PercentileMs(clients.between_tokens(), 0.5);
    const double quiet_p99 = PercentileMs(clients.between_tokens(), 0.99);

    clients.Forget();
    const EngineMetrics before = engine->metrics();
    for (int i = 0; i < absl::GetFlag(FLAGS_num_long); ++i) {
      const size_t num_first = clients.first_token().size();
      REPRISE_RETURN_IF_ERROR(clients.Add(NewRequest(long_prompt, 1)));
      while (clients.first_token().size() == num_first) REPRISE_RETURN_IF_ERROR(clients.Step());
    }
    nlohmann::json json = Shares(before, engine->metrics());
    json["quiet_ms"] = {{"p50", quiet_p50}, {"p99", quiet_p99}};
    AddTimes(clients, json);
    json["p99_ratio"] = PercentileMs(clients.between_tokens(), 0.99) / quiet_p99;
    json["p99_to_quiet_p50"] = PercentileMs(clients.between_tokens(), 0.99) / quiet_p50;
    return json;
  }

  DecoderModel& model_;
  std::mt19937 rng_;
};

absl::Status RunAll() {
  const std::optional<DType> dtype = ParseDType(absl::GetFlag(FLAGS_dtype));
  if (!dtype) return absl::InvalidArgumentError("--dtype: no such type");
  const std::string device = absl::GetFlag(FLAGS_device);
  if (device != "cpu" && device != "cuda") {
    return absl::InvalidArgumentError("--device must be cpu or cuda");
  }
  if (device == "cpu") at::set_num_threads(1);
  REPRISE_ASSIGN_OR_RETURN(const DecoderConfig config, LlamaPreset(absl::GetFlag(FLAGS_preset)));
  REPRISE_ASSIGN_OR_RETURN(
      DecoderWeights weights,
      MakeRandomWeights(config, {.device = c10::Device(device), .dtype = *dtype}));
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<DecoderModel> model,
                           DecoderModel::Create(config, std::move(weights), {}));
  REPRISE_ASSIGN_OR_RETURN(nlohmann::json json,
                           Serving(model.get()).Run(absl::GetFlag(FLAGS_scenario)));
  json["scenario"] = absl::GetFlag(FLAGS_scenario);
  json["preset"] = absl::GetFlag(FLAGS_preset);
  json["rows"] = absl::GetFlag(FLAGS_rows);
  json["budget"] = absl::GetFlag(FLAGS_budget);
  std::cout << json.dump() << std::endl;
  return absl::OkStatus();
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Times a whole engine over a Llama with random weights.");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = reprise::RunAll();
  if (status.ok()) return 0;
  std::cerr << "serving: " << status.message() << "\n";
  return 1;
}
