#include "engine/request.h"

namespace reprise {

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCacheFull:
      return "cache_full";
  }
  return "unknown";
}

}  // namespace reprise
