// Checks that the documents which a certificate names are those that it was taken on, and no better ones.
#pragma once
#include <string>
#include <vector>

#include "compress/certificate/certificate.h"
#include "compress/inputs/sets.h"

namespace fidelio {

// The rule by which units_of(), divide() and text_set() deal documents out. It changes whenever they deal otherwise.
inline constexpr int kDealing = 1;

// Gives the documents the certificate's domain where that is one and the text was given under no name of its own.
void name_domain(Corpus& corpus, const Certificate& certificate);

// Throws Error naming `of`, the domain or the sets, where the certificate speaks of other domains than the documents
// that it names have, or these are not the ones that it gives the hash of.
void check_documents(const Certificate& certificate, const TextSet& set, const std::string& of);

// Deals the text out again as the compression did. Throws Error where other documents would have been certified on.
// Returns half a sentence that says why it cannot be told, or "". It cannot be told of another text, by another rule,
// or where so many documents were left out that the certificate does not name them.
std::string check_dealt(const Certificate& certificate, const Corpus& corpus, const std::string& of);

}  // namespace fidelio
