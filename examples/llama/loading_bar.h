// How far the loading of weights is, as a line for a terminal:
//
//   loading weights [##########..........] 8.0 of 16.1 GB, 5.2 GB/s

#ifndef EXAMPLES_LLAMA_LOADING_BAR_H_
#define EXAMPLES_LLAMA_LOADING_BAR_H_

#include <cstdint>
#include <string>

namespace reprise {

// After `seconds`, which may be 0: no speed is told then. REQUIRES: 0 <= num_bytes <= total_bytes.
std::string LoadingBar(int64_t num_bytes, int64_t total_bytes, double seconds);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_LOADING_BAR_H_
