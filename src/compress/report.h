// What a compression says at its end, and what `compress --dry-run` says before it, as values; docs/json.md describes the
// JSON that --json writes of them.
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

// A checkpoint that was written, and what it was found to be.
struct MadeCheckpoint {
  std::string output;  // its folder
  int64_t file_bytes = 0, source_file_bytes = 0, parameters = 0;
  Certificate certificate;
  std::string beside;                                      // a sentence that compares it with one format everywhere
  std::optional<Plan> plan;                                // nothing where an earlier run wrote it
  std::optional<MeasuredRate> rate;                        // nothing where no rate was asked for
  std::vector<std::pair<std::string, Seconds>> seconds{};  // where the time of the run went until then
  std::optional<int64_t> gpu_bytes_highest{};              // the most memory of the GPU that was taken
  double bits_per_parameter() const { return 8.0 * static_cast<double>(file_bytes) / static_cast<double>(parameters); }
};

struct CompressReport {
  SensitivityTable table;            // that the plans choose from
  std::vector<MadeCheckpoint> made;  // one for each target; none on all ranks but the first
};
// One checkpoint is an object by itself, several are {targets: [..]}.
nlohmann::json to_json(const CompressReport& report);

// Memory that will be needed, and how much there is of it.
struct ForeseenMemory {
  std::vector<MemoryNeed> parts;
  std::optional<int64_t> available;  // nothing where that is not known
};
struct Foreseen {
  ForeseenMemory memory;
  std::optional<ForeseenMemory> gpu_memory;  // nothing where no GPU is asked for
  int64_t disk_bytes = 0;                    // beside the output, while it runs
  TimeNeed time;
};
nlohmann::json to_json(const ForeseenMemory& memory);
nlohmann::json to_json(const Foreseen& foreseen);

}  // namespace fidelio
