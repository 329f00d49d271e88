// The conventions of what a sequence length counts, and conversions between them (S14).
//
//   form              SGLang, vLLM                        a row of 10 cached tokens with 1 + 3 new
//   kBeforeStep       num_computed_tokens                 10  nothing of this step
//   kWithoutDrafts    seq_lens of a verify batch          11  the certain token, not the drafts
//   kWithStep         cache_seqlens; PagedBatch.seq_lens  14  all tokens of this step
//
//   int seq_len = ConvertSeqLen(11, SeqLenForm::kWithoutDrafts, SeqLenForm::kWithStep,
//                               /*num_certain=*/1, /*num_drafts=*/3);   // 14
//
// An inert row has length 0 in all of them: it stays 0.

#ifndef ATTENTION_METADATA_SEQ_LEN_FORM_H_
#define ATTENTION_METADATA_SEQ_LEN_FORM_H_

#include <cstdint>

namespace reprise {

enum class SeqLenForm {
  kBeforeStep,
  kWithoutDrafts,
  kWithStep,
};

// Tokens of this step that a form counts.
constexpr int64_t CountedTokens(SeqLenForm form, int64_t num_certain, int64_t num_drafts) {
  switch (form) {
    case SeqLenForm::kBeforeStep:
      return 0;
    case SeqLenForm::kWithoutDrafts:
      return num_certain;
    case SeqLenForm::kWithStep:
      return num_certain + num_drafts;
  }
  return 0;
}

// A row without tokens of this step is inert, and its length is 0. A length that is too small for
// its form gives a negative result, which the builders refuse.
constexpr int64_t ConvertSeqLen(int64_t seq_len, SeqLenForm from, SeqLenForm to,
                                int64_t num_certain, int64_t num_drafts) {
  if (num_certain + num_drafts == 0) return 0;
  return seq_len - CountedTokens(from, num_certain, num_drafts) +
         CountedTokens(to, num_certain, num_drafts);
}

}  // namespace reprise

#endif  // ATTENTION_METADATA_SEQ_LEN_FORM_H_
