// Times the loading of a model folder of a published shape, and measures its use of memory.
//
//   load_checkpoint --model llama-3.1-8b --dir /dev/shm/reprise-load
//   load_checkpoint --gb 2 --device cpu
//   load_checkpoint --model llama-3.1-70b --gb 16 --ranks 2             two processes at once
//   load_checkpoint --model llama-3.1-70b --gb 16 --ranks 2 --rank 1    one of them alone
//
// Writes the folder with random weights, so that its files are in the page cache, loads it --repeat
// times, and prints a JSON line a time:
//   gb          bytes of the weights that the process loads, in 1e9: with --ranks those of a rank
//   load_s      until DecoderModel's weights are on the device; on the CPU, where much stays in the
//               mapped files, until every page of them has been looked at
//   gb_per_s    of these
//   all_s       load_s, scaled to the layers of the whole model: what --gb left out takes the time
//   of as
//               many bytes
//   peak_host   the process's largest resident set during the loading, less that before it, as a
//               multiple of the weights
// then removes it.

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/launch.h"
#include "reprise/distributed/process_group.h"
#include "reprise/hf/tensor_view.h"
#include "reprise/hf/weights.h"
#include "reprise/models/decoder/decoder_config.h"
#include "reprise/models/decoder/decoder_weights.h"
#include "reprise/models/decoder/public_configs.h"
#include "reprise/models/decoder/random_checkpoint.h"

ABSL_FLAG(std::string, model, "llama-3.1-8b", "a name of examples/models/decoder/public_configs.h");
ABSL_FLAG(double, gb, 0, "at least so many GB of weights, by fewer layers; 0: all layers");
ABSL_FLAG(std::string, dir, "/dev/shm/reprise-load", "folder to write and remove");
ABSL_FLAG(std::string, device, "auto", "cpu, cuda or auto");
ABSL_FLAG(std::string, dtype, "auto", "of the loaded weights: auto (as stored), float32, ...");
ABSL_FLAG(int, repeat, 3, "how often it is loaded");
ABSL_FLAG(int, ranks, 1, "ranks of which each loads its own part");
ABSL_FLAG(int, rank, -1, "loads alone, on the first device; -1: all at once, each on its device");
ABSL_FLAG(bool, keep, false, "leave the folder behind, and use it if it is there");

namespace reprise {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Of a checkpoint.
int64_t BytesOf(const DecoderConfig& config) {
  int64_t num_elements = 0;
  for (const ExpectedTensor& tensor : DecoderTensors(config)) {
    num_elements += *NumElements(tensor.shape);
  }
  return num_elements * SizeOf(config.dtype.value_or(DType::kBFloat16));
}

// With the number of layers that gives --gb.
absl::StatusOr<nlohmann::json> ChosenConfig() {
  REPRISE_ASSIGN_OR_RETURN(nlohmann::json config, PublicConfig(absl::GetFlag(FLAGS_model)));
  if (absl::GetFlag(FLAGS_gb) <= 0) return config;
  for (int num_layers = 1; num_layers < config["num_hidden_layers"]; ++num_layers) {
    nlohmann::json smaller = config;
    smaller["num_hidden_layers"] = num_layers;
    REPRISE_ASSIGN_OR_RETURN(const DecoderConfig parsed, ParseDecoderConfig(smaller));
    if (static_cast<double>(BytesOf(parsed)) >= absl::GetFlag(FLAGS_gb) * 1e9) return smaller;
  }
  return config;
}

absl::StatusOr<c10::Device> ChosenDevice(int index) {
  const std::string name = absl::GetFlag(FLAGS_device);
  if (name == "cpu") return c10::Device(c10::kCPU);
  if (name == "cuda" || (name == "auto" && at::globalContext().hasCUDA())) {
    return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  }
  if (name == "auto") return c10::Device(c10::kCPU);
  return absl::InvalidArgumentError(
      absl::StrCat("--device: expected cpu, cuda or auto, got ", name));
}

absl::StatusOr<std::optional<DType>> ChosenDType() {
  const std::string name = absl::GetFlag(FLAGS_dtype);
  if (name == "auto") return std::optional<DType>();
  const std::optional<DType> dtype = ParseDType(name);
  if (dtype.has_value()) return dtype;
  return absl::InvalidArgumentError(absl::StrCat("--dtype: unknown type ", name));
}

// The largest resident set since ForgetPeak(), in bytes.
int64_t PeakResidentBytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

void ForgetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

// Reads a byte of every page, as the first step of a model would.
int64_t Touch(const at::Tensor& tensor) {
  constexpr int64_t kPageBytes = 4096;
  const char* const bytes = static_cast<const char*>(tensor.const_data_ptr());
  int64_t sum = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(tensor.nbytes()); i += kPageBytes) sum += bytes[i];
  return sum;
}

// The large tensors of a rank; norms are left out.
std::vector<at::Tensor> MatricesOf(const DecoderWeights& weights) {
  std::vector<at::Tensor> matrices = {weights.embedding};
  if (!weights.lm_head.weight().is_alias_of(weights.embedding)) {
    matrices.push_back(weights.lm_head.weight());
  }
  for (const DecoderLayerWeights& layer : weights.layers) {
    for (const Linear* linear : {&layer.qkv, &layer.o, &*layer.gate_up, &*layer.down}) {
      matrices.push_back(linear->weight());
    }
  }
  return matrices;
}

int64_t BytesOf(const DecoderWeights& weights) {
  int64_t bytes = 0;
  for (const at::Tensor& matrix : MatricesOf(weights)) {
    bytes += static_cast<int64_t>(matrix.nbytes());
  }
  return bytes;
}

int64_t TouchAll(const DecoderWeights& weights) {
  int64_t sum = 0;
  for (const at::Tensor& matrix : MatricesOf(weights)) sum += Touch(matrix);
  return sum;
}

// How many times the bytes of `config` the whole model has.
absl::StatusOr<double> WholeModel(const DecoderConfig& config) {
  REPRISE_ASSIGN_OR_RETURN(const DecoderConfig whole, LlamaPreset(absl::GetFlag(FLAGS_model)));
  return static_cast<double>(BytesOf(whole)) / static_cast<double>(BytesOf(config));
}

absl::Status LoadOnce(const std::string& folder, const DecoderConfig& config,
                      const LoadWeightsOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(const double whole, WholeModel(config));
  ForgetPeak();
  const int64_t before = PeakResidentBytes();
  const Clock::time_point begin = Clock::now();
  REPRISE_ASSIGN_OR_RETURN(const DecoderWeights weights,
                           LoadDecoderWeights(folder, config, options));
  int64_t touched = 0;
  if (options.device.is_cpu()) touched = TouchAll(weights);
  const double seconds = SecondsSince(begin);
  const double bytes = static_cast<double>(BytesOf(weights));
  const nlohmann::json result = {
      {"model", absl::GetFlag(FLAGS_model)},
      {"layers", config.num_layers},
      {"rank", options.ranks.rank},
      {"ranks", options.ranks.world},
      {"device", options.device.str()},
      {"gb", bytes / 1e9},
      {"load_s", seconds},
      {"gb_per_s", bytes / 1e9 / seconds},
      {"all_s", seconds * whole},
      {"peak_host", static_cast<double>(PeakResidentBytes() - before) / bytes},
      {"touched", touched}};  // so that the compiler cannot leave it out
  std::cout << absl::StrCat(result.dump(), "\n") << std::flush;
  return absl::OkStatus();
}

absl::Status WriteFolder(const std::string& folder, const nlohmann::json& json) {
  if (absl::GetFlag(FLAGS_keep) && std::filesystem::exists(folder + "/config.json")) {
    return absl::OkStatus();
  }
  if (std::filesystem::exists(folder)) {
    return absl::AlreadyExistsError(absl::StrCat("--dir: ", folder, " is there already"));
  }
  const Clock::time_point begin = Clock::now();
  REPRISE_RETURN_IF_ERROR(WriteRandomCheckpoint(folder, json, {}));
  std::cerr << "wrote " << folder << " in " << SecondsSince(begin) << " s" << std::endl;
  return absl::OkStatus();
}

// As rank `ranks` of those that `all` has, which load at once.
absl::Status LoadAs(const Ranks& ranks, int device_index, Collectives& all) {
  REPRISE_ASSIGN_OR_RETURN(const nlohmann::json json, ChosenConfig());
  REPRISE_ASSIGN_OR_RETURN(const std::optional<DType> dtype, ChosenDType());
  const std::string folder = absl::GetFlag(FLAGS_dir);
  if (all.ranks().rank == 0) REPRISE_RETURN_IF_ERROR(WriteFolder(folder, json));
  REPRISE_RETURN_IF_ERROR(all.Barrier());
  REPRISE_ASSIGN_OR_RETURN(const c10::Device device, ChosenDevice(device_index));
  REPRISE_ASSIGN_OR_RETURN(const DecoderConfig config, LoadDecoderConfig(folder));
  absl::Status status;
  for (int i = 0; i < absl::GetFlag(FLAGS_repeat) && status.ok(); ++i) {
    status = LoadOnce(folder, config, {.device = device, .dtype = dtype, .ranks = ranks});
    status.Update(all.Barrier());
  }
  if (all.ranks().rank == 0 && !absl::GetFlag(FLAGS_keep)) std::filesystem::remove_all(folder);
  return status;
}

absl::Status Run() {
  const int world = absl::GetFlag(FLAGS_ranks), rank = absl::GetFlag(FLAGS_rank);
  if (world < 1 || rank < -1 || rank >= world) {
    return absl::InvalidArgumentError("--ranks must be at least 1, and --rank -1 or one of them");
  }
  if (world == 1 || rank >= 0) {
    return LoadAs({.rank = std::max(rank, 0), .world = world}, /*device_index=*/0, *OneRank());
  }
  return RunRanks(world, [](const RankPlace& place) -> absl::Status {
    // The first writes the folder while the others wait.
    REPRISE_ASSIGN_OR_RETURN(const auto all, ConnectRanks(place, c10::Device(c10::kCPU),
                                                          {.timeout = absl::Minutes(10)}));
    return LoadAs(place.ranks, place.local_rank, *all);
  });
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("times the loading of a model folder");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = reprise::Run();
  if (!status.ok()) std::cerr << "load_checkpoint: " << status.message() << std::endl;
  return status.ok() ? 0 : 1;
}
