// Unstable: any version may change this header (docs/embedding.md).
//
// Members of config.json that several families have, for the readers of decoder_families.cc and
// expert_families.cc. Errors: InvalidArgument, naming the field. Thread safety: pure functions.

#ifndef REPRISE_MODELS_DECODER_FAMILY_FIELDS_H_
#define REPRISE_MODELS_DECODER_FAMILY_FIELDS_H_

#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/hf/json_fields.h"
#include "reprise/models/decoder/decoder_config.h"

namespace reprise {

// The flag; `absent` if the member is absent or null.
absl::StatusOr<bool> ReadFlag(const JsonFields& fields, std::string_view name, bool absent);

// Errors: also a member that is there and not `only`.
absl::Status CheckIs(const JsonFields& fields, std::string_view name, bool only);

// A number of tokens; `absent` if the member is absent. nullopt if it is null, which means that the
// model does without.
absl::StatusOr<std::optional<int>> ReadSpan(const JsonFields& fields, std::string_view name,
                                            int absent);

// A positive factor; 1 if the member is absent or null.
absl::StatusOr<double> ReadMultiplier(const JsonFields& fields, std::string_view name);

// "layer_types", each `local` or "full_attention": whether each layer is local. nullopt if it is
// absent.
absl::StatusOr<std::optional<std::vector<bool>>> ReadLocalLayers(const JsonFields& fields,
                                                                 const DecoderConfig& config,
                                                                 std::string_view local);

// "attention_bias", of q, k, v and o; `absent` if the member is absent.
absl::Status ReadAttentionBias(const JsonFields& fields, bool absent, DecoderConfig& config);

// "sliding_window" of all layers, unless it is null; `absent` tokens if the member is absent.
absl::Status ReadWindowOfAllLayers(const JsonFields& fields, std::optional<int> absent,
                                   DecoderConfig& config);

// Qwen's windows: "sliding_window" counts only with "use_sliding_window", in the layers that
// "layer_types" or "max_window_layers" name.
absl::Status ReadQwenWindows(const JsonFields& fields, DecoderConfig& config);

// "sliding_window" in every other layer, the first among them, unless "layer_types" says otherwise.
absl::Status ReadAlternatingWindows(const JsonFields& fields, int default_window,
                                    DecoderConfig& config);

// Readers of families with experts (expert_families.cc). Each reads the family's own members; those
// of all families are in `config` already.
absl::Status ReadQwen2Moe(const JsonFields& fields, DecoderConfig& config);
absl::Status ReadQwen3Moe(const JsonFields& fields, DecoderConfig& config);
absl::Status ReadGptOss(const JsonFields& fields, DecoderConfig& config);
absl::Status ReadMixtral(const JsonFields& fields, DecoderConfig& config);
absl::Status ReadOlmoe(const JsonFields& fields, DecoderConfig& config);
absl::Status ReadGlm4Moe(const JsonFields& fields, DecoderConfig& config);
absl::Status ReadDeepseekV2(const JsonFields& fields, DecoderConfig& config);
absl::Status ReadDeepseekV3(const JsonFields& fields, DecoderConfig& config);

}  // namespace reprise

#endif  // REPRISE_MODELS_DECODER_FAMILY_FIELDS_H_
