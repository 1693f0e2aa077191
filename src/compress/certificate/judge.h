// Judging a measurement by documents: what it says of a promise, with which confidence, and what another set of
// documents will say of the same model.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "alloc/search.h"
#include "compress/inputs/sets.h"
#include "eval/fidelity/domains.h"

namespace fidelio {

struct Judged {
  std::vector<DomainFidelity> domains;  // 95% intervals
  DomainFidelity all;
  std::string worst;     // the domain with the lowest lower end of EAR; "all" where that is what was promised
  Measurement measured;  // what is compared with a target; its intervals have the confidence that was asked for
};
Judged judge(std::span<const DocumentFidelity> documents, Promise promise, double confidence = 0.95);
// Foresees a test on the certificate's documents, of so many a domain: in nine of ten cases it will not fall short of
// this, by what was measured on the documents given.
Measurement foreseen(std::span<const DocumentFidelity> documents, Promise promise, double confidence,
                     const DocumentCounts& certificate);

// A plan whose answers fail their check (search/tasks.cc) is changed and checked again, on the same questions. So
// that checking often does not make a promise true by chance, check k takes an interval of confidence 1 - .05 / 2^(k
// - 1): the chance that a plan that loses too much passes one of them is below 2.5% + 1.25% + ... = 5%. The documents
// of the certificate are tested otherwise (LadderStep).
double confidence_of_test(int test);
// How sure all checks together are: their errors add up, so that the certainty falls from 97.5% at the first towards
// 95%, while each check is more cautious than the last.
double certainty_after(int tests);
inline constexpr int kMostTests = 4;

// How many times as wide as with kEnoughDocuments these documents make an interval of a mean, and a sentence about
// it; 1 and "" where both documents and windows are enough.
double widening(const TextSet& set);
std::string few_documents_text(const TextSet& set);

}  // namespace fidelio
