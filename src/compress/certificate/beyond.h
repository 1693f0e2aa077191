// A certificate's figures beyond its means: the worst positions, the model as its authors recommend to sample it, and
// whole answers. They are measured and stated, and nothing is promised of them.
#pragma once
#include <string>
#include <vector>

#include "compress/certificate/certificate.h"
#include "compress/certificate/words.h"

namespace fidelio {

// An entry for each of them that there is.
std::vector<PlainWords> words_beyond_means(const Certificate& certificate);

// The first of them that another measurement of the same documents and prompts does not bear out, as half a sentence;
// "" where all are, or one of the two has none.
std::string beyond_not_borne_out(const Certificate& claimed, const Certificate& measured);

}  // namespace fidelio
