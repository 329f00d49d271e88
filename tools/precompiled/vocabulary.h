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

#endif  // REPRISE_TOOLS_PRECOMPILED_VOCABULARY_H_
