// Pictures of a certificate, as inline SVG (eval/report/html.h has the rules of pages).
#pragma once
#include <span>
#include <string>

#include "compress/certificate/certificate.h"

namespace fidelio {

// A row for each domain: its mean with the interval, where a new document may lie, and every document as a point; the
// target is a line across all rows. The axis is KL where KL alone was asked for, else the overlap (EAR).
std::string domains_picture(const Certificate& certificate, std::span<const DocumentFidelity> documents);

// The plans that were tested on these documents, by size: each with its interval beside the target. "" for fewer than
// two.
std::string ladder_picture(const Certificate& certificate);

// Mean KL by how many tokens of the window precede, and by how sure the original was of its most probable token. ""
// where no position was counted.
std::string tails_picture(const Certificate& certificate);

}  // namespace fidelio
