// This file is the part of `compress --dry-run` that needs no weights. It says how large the model would be in each
// format, and how much memory and disk making it takes.
#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "compress/job.h"
#include "compress/report.h"
#include "io/checkpoint.h"

namespace fidelio {

// A SizeInFormat is the size of a file with one format everywhere.
struct SizeInFormat {
  std::string format;
  int64_t bytes = 0;
  double bits_per_parameter = 0;
};
struct ForeseenSizes {
  std::vector<SizeInFormat> sizes;  // the source first
  std::optional<int64_t> asked_bytes;
  int64_t cache_bytes_per_token = 0;
  ForeseenMemory memory;
  std::optional<ForeseenMemory> gpu_memory;
  int64_t disk_bytes = 0;
};
nlohmann::json to_json(const ForeseenSizes& foreseen);

// Foresees the sizes of a checkpoint without values (io/outline/outline.h), and tells `note` every line of it. Nothing
// is refused for want of room here: another machine may have it.
ForeseenSizes foresee_sizes(const Checkpoint& outline, const Job& job,
                            const std::function<void(const std::string&)>& note);

}  // namespace fidelio
