// The builders of metadata that metadata.cc times.

#ifndef TESTS_BENCHMARKS_DEVICE_METADATA_CASE_H_
#define TESTS_BENCHMARKS_DEVICE_METADATA_CASE_H_

#include <cuda_runtime_api.h>
#include <glog/logging.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace reprise {

// Converts a launcher's result to that of a case. A Status that is not OK ends the program.
inline cudaError_t ErrorOf(cudaError_t error) { return error; }
inline cudaError_t ErrorOf(const absl::Status& status) {
  CHECK(status.ok()) << status;
  return cudaSuccess;
}

struct MetadataCase {
  std::string name;
  // Enqueues one launch over memory that lives as long as the case.
  std::function<cudaError_t(cudaStream_t)> launch;
};

// The builders that are not speculative, for `num_rows` rows: decodes, verification of 5 tokens a
// row, and a chunked prefill of 8,192 tokens, over a table of 1,024 blocks a sequence.
std::vector<MetadataCase> PlainMetadataCases(int num_rows);

// Those of speculative batches, of the advance of a decode step and of common prefixes, over rows
// of some 2,000 tokens; and the merge of partial results, which is not metadata but also small.
std::vector<MetadataCase> DraftMetadataCases(int num_rows);

// The same on the host, for decodes.
struct HostMetadataCase {
  std::string name;
  std::function<void()> build;
};
std::vector<HostMetadataCase> HostMetadataCases(int num_rows);

}  // namespace reprise

#endif  // TESTS_BENCHMARKS_DEVICE_METADATA_CASE_H_
