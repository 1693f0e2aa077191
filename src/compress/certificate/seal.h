// A seal: a short hash of each field of a certificate, kept beside it in the provenance, so that a field that was
// edited since is named. Figures are measured again anyway; a target, a ladder of plans, a floor or a promise of
// answers is not. It is no signature: whoever knows this page can make a seal anew.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "io/checkpoint.h"

namespace fidelio {

nlohmann::json seal_of(const nlohmann::json& certificate);  // 12 digits of a SHA-256 by field

// The fields of a certificate that are not what they were when it was written. `by_measuring`: whether measuring again
// shows what is wrong with them.
struct EditedFields {
  std::vector<std::string> by_measuring, others;
};
// Throws Error for a certificate without a seal.
EditedFields edited_fields(const Checkpoint& checkpoint);

}  // namespace fidelio
