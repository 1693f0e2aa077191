// The part of `compress --dry-run` that needs no weights: how large the model would be in each format, and what making it
// takes.
#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "compress/job.h"
#include "io/checkpoint.h"

namespace fidelio {

// Says that of a checkpoint without values (io/outline/outline.h). Every line goes to `note`; the same is returned, in the words of
// docs/json.md. Nothing is refused for want of room here: another machine may have it.
nlohmann::json foresee_sizes(const Checkpoint& outline, const Job& job,
                             const std::function<void(const std::string&)>& note);

}  // namespace fidelio
