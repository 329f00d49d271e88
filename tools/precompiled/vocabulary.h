// Headers of the standard library, Abseil and glog that many files of Reprise include.
#ifndef REPRISE_TOOLS_PRECOMPILED_VOCABULARY_H_
#define REPRISE_TOOLS_PRECOMPILED_VOCABULARY_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "glog/logging.h"

// clang reads of a precompiled header what a file needs, g++ all of it.
#ifdef __clang__
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
// No dependency of every target: a machine may lack it, or have another one.
#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>
#endif
#endif

#endif  // REPRISE_TOOLS_PRECOMPILED_VOCABULARY_H_
