// A certificate for somebody who has never heard of EAR.
#pragma once
#include <string>
#include <vector>

#include "compress/certificate/certificate.h"

namespace fidelio {

struct PlainWords {
  std::string about, sentence;  // "How sure", and a sentence that ends with a full stop
};
// One entry each: what was promised, on what text, how sure, what was not tested. `kept`: whether the measurement bears
// the promise out; if it does not, the words say so in place of the promise, so that nobody can quote it.
std::vector<PlainWords> in_plain_words(const Certificate& certificate, bool kept);

// "97.80% [97.72, 97.91]", without ends that are not known.
std::string percent_with_interval(const Estimate& share);

}  // namespace fidelio
