// The certificate: a measured fidelity, written into the checkpoint, that anybody can measure again.
#pragma once
#include <nlohmann/json.hpp>

#include "alloc/search.h"
#include "eval/studies/compare.h"
#include "io/checkpoint.h"
#include "runtime/runner.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio {

// Text for measuring, cut into windows that are dealt alternately: the even ones guide the search, the odd ones are
// looked at only when a plan has been chosen. Both halves come from the same documents, so they have the same
// distribution.
struct SplitTexts {
  std::vector<EvalText> search, certify;
  int64_t context = 0;
};
SplitTexts split_texts(const std::vector<std::string>& files, const Tokenizer& tokenizer, int64_t context);

// The certificate as it stands in a checkpoint's provenance, and as an export may carry it in its own metadata:
// {target, ear, kl, perplexity_ratio, top1, texts, context, windows, activations, kv, kernels, looks, reference_sha256}
nlohmann::json make_certificate(const Target& target, const FidelityReport& report, const Runner& served, int looks,
                                const std::string& reference_sha256, const std::vector<std::string>& files);

// What a checkpoint's certificate claims, as far as measuring it again needs. Throws Error for a checkpoint without one
// and for a damaged one.
struct Claim {
  Target target;
  Estimate ear, kl;
  std::vector<std::string> texts, text_sha256;  // paths; of their contents
  int64_t context = 0;
  std::string activations, kv, reference_sha256;
  int looks = 0;
  nlohmann::json json;  // the whole
};
Claim read_claim(const Checkpoint& checkpoint);
Measurement measurement_of(const FidelityReport& report);

}  // namespace fidelio
