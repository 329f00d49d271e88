#include "reprise/hf/tokenizer/small_tokenizer.h"

#include <string>

#include "nlohmann/json.hpp"
#include "reprise/hf/tokenizer/byte_level.h"

namespace reprise {

nlohmann::json SmallTokenizerJson() {
  nlohmann::json tokenizer = nlohmann::json::parse(R"json({
    "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
    "added_tokens": [
      {"id": 261, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true},
      {"id": 262, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true}],
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": " ?\\p{L}+|\\p{N}{1,3}|\\s+|[^\\s\\p{L}\\p{N}]+"},
       "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
    "post_processor": {"type": "Sequence", "processors": [
      {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
      {"type": "TemplateProcessing",
       "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                  {"Sequence": {"id": "A", "type_id": 0}}],
       "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
       "special_tokens": {"<s>": {"id": "<s>", "ids": [261], "tokens": ["<s>"]}}}]},
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null,
              "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
              "byte_fallback": false, "ignore_merges": false,
              "vocab": {"he": 256, "ll": 257, "hell": 258, "hello": 259, "Ġw": 260},
              "merges": [["h", "e"], ["l", "l"], ["he", "ll"], ["hell", "o"], ["Ġ", "w"]]}
  })json");
  for (int byte = 0; byte < 256; ++byte) {
    tokenizer["model"]["vocab"][LevelFromBytes(std::string(1, static_cast<char>(byte)))] = byte;
  }
  return tokenizer;
}

}  // namespace reprise
