// This file holds, as values, what a compression says at its end and what `compress --dry-run` says before it.
// docs/json.md describes the JSON that --json writes of them.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "alloc/plan.h"
#include "compress/certificate/certificate.h"
#include "compress/preflight.h"
#include "compress/rate/pace.h"
#include "compress/seconds.h"

namespace fidelio {

// A MadeCheckpoint is a checkpoint that was written, with its certificate.
struct MadeCheckpoint {
  std::string output;  // the folder
  int64_t file_bytes = 0, source_file_bytes = 0, parameters = 0;
  Certificate certificate;
  std::string beside;                                      // a sentence that compares it with one format everywhere
  std::optional<Plan> plan;                                // empty if an earlier run wrote it
  std::optional<MeasuredRate> rate;                        // empty if no rate was asked for
  std::vector<std::pair<std::string, Seconds>> seconds{};  // where the time of the run went until then
  std::optional<int64_t> gpu_bytes_highest{};              // the most memory of the GPU that was taken
  double bits_per_parameter() const { return 8.0 * static_cast<double>(file_bytes) / static_cast<double>(parameters); }
};

struct CompressReport {
  SensitivityTable table;            // the table that the plans choose from
  std::vector<MadeCheckpoint> made;  // one for each target, on the first rank alone
};
// Returns one object for one checkpoint, and {targets: [..]} for several.
nlohmann::json to_json(const CompressReport& report);

// A ForeseenMemory says how much memory will be needed, and how much of it there is.
struct ForeseenMemory {
  std::vector<MemoryNeed> parts;
  std::optional<int64_t> available;  // empty if that is not known
};
struct Foreseen {
  ForeseenMemory memory;
  std::optional<ForeseenMemory> gpu_memory;  // empty if no GPU is asked for
  int64_t disk_bytes = 0;                    // beside the output, while it runs
  TimeNeed time;
};
nlohmann::json to_json(const ForeseenMemory& memory);
nlohmann::json to_json(const Foreseen& foreseen);

}  // namespace fidelio
