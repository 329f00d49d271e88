// One point of the decode benchmark: a model, a number of rows, a context length; measured, split
// into parts, and compared with a lower bound of its time.
//
// Rows have random keys in shuffled block tables and may share their first blocks; every step is
// refill, replay and sampling, pipelined as in an engine.

#ifndef TESTS_BENCHMARKS_DEVICE_DECODE_CASE_H_
#define TESTS_BENCHMARKS_DEVICE_DECODE_CASE_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "reprise/distributed/collectives.h"
#include "reprise/graphs/graph_set.h"
#include "reprise/models/decoder/decoder_model.h"
#include "reprise/runner/model_runner_options.h"
#include "tests/benchmarks/device/memory_rates.h"
#include "tests/benchmarks/device/step_trace.h"

namespace reprise {

struct DecodeCase {
  int batch = 1;
  int context = 1024;  // keys of each row at the middle of the timed steps
  // Number of first keys in blocks that all rows share; a multiple of block_size, at most the keys
  // of a row when the first step begins. The floors count them once.
  int shared_len = 0;
  CascadeMode cascade = CascadeMode::kOff;  // whether they are read once if that is faster
  int block_size = 16;
  GraphSetOptions::Mode graphs = GraphSetOptions::Mode::kEager;
  // Drafts of each row, given by the host; nearly all are rejected. 0: plain decodes.
  int num_drafts = 0;
  // Above 0: each draft is right with this probability. The model's head must be zero: then it
  // chooses token 0, whatever it reads, and what is right is known. The rows' texts grow by what is
  // accepted.
  double acceptance = 0;
  int num_timed_steps = 60;
  // Of a model that is divided over ranks, all of which measure the same case; null: one rank.
  Collectives* collectives = nullptr;
  bool sample_shards = false;  // as DebugOptions::sample_shards
  // As DeviceOptions::linear_choices_file.
  std::string linear_choices_file = {};
  int num_samples = 5;  // of num_timed_steps each; the median is reported
};

struct DecodeResult {
  double step_us = 0;         // by the host's clock over many steps; includes everything
  double tokens_per_row = 1;  // new ones, of a row and step
  double step_min_us = 0;     // of the samples
  double step_max_us = 0;
  double launch_us = 0;     // host time per step: ModelRunner::Launch()
  double weight_bytes = 0;  // read by a step
  double kv_bytes = 0;
  double products_us = 0;        // all matrix products of a step alone, by replay
  double bytes_floor_us = 0;     // (weights + KV) / read bandwidth
  double products_floor_us = 0;  // products + KV / read bandwidth
  bool is_cascade = false;       // the decision in the last step
  double graph_bytes = 0;
  double capture_ms = 0;
  StepParts parts;
  // Bytes that a step's kernels read and write at least, by StepKernel::part: weights with their
  // scales, keys and values, and of others the rows that go in and out. Of parts that are not
  // listed: hardly any.
  std::map<std::string, double> part_bytes;
};

// With ranks, the numbers are this rank's: its weights, its keys, its kernels. Before each step
// rank 0 broadcasts as many bytes as RankedSteps does (engine/ranked_steps.h).
// Errors: ResourceExhausted if the point does not fit into the device's memory; else those of the
// runner.
absl::StatusOr<DecodeResult> MeasureDecode(DecoderModel& model, const DecodeCase& decode_case,
                                           const MemoryRates& limits);

}  // namespace reprise

#endif  // TESTS_BENCHMARKS_DEVICE_DECODE_CASE_H_
