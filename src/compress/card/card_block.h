// This file writes a few lines of Markdown about a certified model, for somebody's own model card.
#pragma once
#include <string>

#include "compress/card/card.h"

namespace fidelio {

// Writes them. Throws Error for a model without a certificate.
std::string card_block(const CardFacts& facts);

}  // namespace fidelio
