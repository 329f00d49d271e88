// Just enough of the safetensors format for the weights of an example.

#ifndef SAFETENSORS_H_
#define SAFETENSORS_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "example.h"
#include "nlohmann/json.hpp"

// The file's tensors by name; empty if there is no such file.
inline std::map<std::string, at::Tensor> ReadSafetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  std::map<std::string, at::Tensor> tensors;
  if (bytes.size() < 8) return tensors;
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), 8);
  const nlohmann::json header = nlohmann::json::parse(bytes.substr(8, header_size));
  const std::map<std::string, at::ScalarType> types = {
      {"BF16", at::kBFloat16}, {"F32", at::kFloat}, {"I32", at::kInt}, {"I64", at::kLong}};
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    char* const data = bytes.data() + 8 + header_size + entry["data_offsets"][0].get<int64_t>();
    tensors[name] = at::from_blob(data, entry["shape"].get<std::vector<int64_t>>(),
                                  types.at(entry["dtype"].get<std::string>()))
                        .clone();
  }
  return tensors;
}

#endif  // SAFETENSORS_H_
