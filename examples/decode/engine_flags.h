// The flags of decode that set options of the engine, in one table.
//
//   for (const EngineFlag& flag : EngineFlags()) REPRISE_RETURN_IF_ERROR(flag.set(flag.name, "8",
//   arguments));
//
// A new flag is one row: its name, its setter and its help.
//
// Thread safety: pure functions.

#ifndef EXAMPLES_DECODE_ENGINE_FLAGS_H_
#define EXAMPLES_DECODE_ENGINE_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "examples/decode/flags.h"

namespace reprise {

struct EngineFlag {
  enum class Kind : int8_t { kNumber, kText, kPath, kSwitch };

  // Sets the option to a value. Errors: InvalidArgument naming the flag, what was expected and what
  // was got. Values that contradict an earlier row are refused, so rows are set in the order of the
  // table.
  using Set = absl::Status (*)(const char* name, const std::string& value,
                               DecodeArguments& arguments);

  const char* name;
  Kind kind;
  const char* default_text;  // as --help shows it; "": none
  const char* help;
  Set set;  // of a switch: called if it is on, with an empty value
};

// Flags of all commands.
absl::Span<const EngineFlag> EngineFlags();
// Flags of chat and serve, in addition.
const EngineFlag& MaxSeqLenFlag();
// Flags of serve, in addition.
const EngineFlag& MaxNumSeqsFlag();
const EngineFlag& MaxWaitingFlag();

// The numbers of a list such as "1,8,32", each in [1, most]. Errors: InvalidArgument naming the
// flag.
absl::StatusOr<std::vector<int>> CountsOf(const char* flag, const std::string& text, int most);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_ENGINE_FLAGS_H_
