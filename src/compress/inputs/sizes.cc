#include "compress/inputs/sizes.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "compress/desk/budget.h"
#include "compress/preflight.h"
#include "core/foreign/units.h"

namespace fidelio {
namespace {

// Returns the bytes of the whole file in one format everywhere, without its header.
int64_t bytes_in(const FormatSpec& format, const ModelConfig& config, const std::vector<LinearGroup>& groups,
                 int64_t fixed) {
  int64_t bytes = fixed + shared_bytes(format);
  for (const LinearGroup& g : groups)
    for (LinearId id : g.linears) {
      const Shape shape = shape_of(config, id);
      bytes += stored_bytes(format, shape[0], shape[1]);
    }
  return bytes;
}

class SizeTable {
 public:
  SizeTable(const Checkpoint& outline, const Job& job, const std::function<void(const std::string&)>& note)
      : outline_(outline),
        job_(job),
        note_(note),
        groups_(groups_of(outline.config(), job.grouping, !job.keep_embedding, rules_of(job.consumer).fused)),
        fixed_(fixed_bytes(outline, groups_)),
        source_bytes_(outline.file_bytes()) {}

  ForeseenSizes print() {
    const ModelConfig& c = outline_.config();
    note_(fmt::format("{} has config.json and no weights. What follows is computed from sizes alone", job_.model));
    note_(fmt::format("{}, {} parameters, {} layers of width {}, context {}", name_of(c.architecture),
                      outline_.parameters(), c.L, c.d, c.max_positions));
    print_formats();
    const int64_t cache = 2 * 2 * cached_values(c);
    note_(fmt::format("Serving it takes the file in memory, and {} for every 1024 tokens of context (FP16)",
                      bytes_text(1024 * cache)));
    foreseen_.cache_bytes_per_token = cache;
    print_memory();
    note_(fmt::format(
        "Not known without the weights: how close a file of each size comes to the original, and so which size {} "
        "takes; how long it takes, since a layer is timed for that; and whether the files hold what config.json says{}",
        job_.has_target() ? "the target" : "is wanted",
        outline_.texts().exists("tokenizer.json") ? "" : ". A tokenizer is not there either"));
    return std::move(foreseen_);
  }

 private:
  void print_row(const std::string& name, int64_t bytes, const std::string& words) {
    const double bits = 8.0 * static_cast<double>(bytes) / static_cast<double>(outline_.parameters());
    note_(fmt::format("{:<16} {:>16.3f} {:>12}{}", name, bits, bytes_text(bytes), words));
    foreseen_.sizes.push_back({name, bytes, bits});
  }

  void print_formats() {
    note_(fmt::format("{:<16} {:>16} {:>12}", "everywhere in", "bits a parameter", "file"));
    const FormatSpec own = outline_.format(linears_of(outline_.config()).front());
    print_row(to_string(own), source_bytes_, "   the source");
    int64_t least = source_bytes_;
    for (const FormatSpec& f : job_.formats) {
      const int64_t bytes = bytes_in(f, outline_.config(), groups_, fixed_);
      least = std::min(least, bytes);
      print_row(to_string(f), bytes, job_.keep_embedding ? "   embedding and head as they are" : "");
    }
    note_("A plan gives each matrix one of these formats, so its file may have any size between them");
    const int64_t asked = bytes_asked(job_, outline_.parameters());
    if (asked == 0) return;
    note_(asked < least
              ? fmt::format("No plan of these formats fits {}: the smallest takes {}. Offer narrower --formats",
                            bytes_text(asked), bytes_text(least))
              : fmt::format("The size that is asked for is {}", bytes_text(asked)));
    foreseen_.asked_bytes = asked;
  }

  ForeseenMemory print_needs(const char* whose, std::vector<MemoryNeed> needs, std::optional<int64_t> there) {
    for (const MemoryNeed& need : needs) note_(fmt::format("{:<52} {:>10}", need.what, bytes_text(need.bytes)));
    note_(fmt::format("{:<52} {:>10}   {}", whose, bytes_text(total(needs)),
                      !there ? std::string("on the GPU")
                      : total(needs) <= *there
                          ? fmt::format("of {} available here", bytes_text(*there))
                          : fmt::format("and {} are available here: too little", bytes_text(*there))));
    return {std::move(needs), there};
  }

  void print_memory() {
    CompressSize size{outline_, groups_, job_.formats};
    size.calibration_tokens =
        job_.tokens > 0 ? job_.tokens : calibration_tokens_for(outline_.parameters(), job_.on_gpu);
    size.search_tokens =
        job_.search_tokens > 0 ? job_.search_tokens : search_tokens_for(outline_.parameters(), job_.on_gpu);
    size.rows = batch_rows_for(outline_.config(), job_.context, job_.on_gpu);
    size.logit_rows = logit_rows_for(job_.serving.max_logit_rows, job_.on_gpu);
    size.generations = job_.most_generations();
    size.answering_tokens = job_.answering_tokens;
    size.answering_states = job_.answering_states;
    size.budget = foreseen_.asked_bytes.value_or(0);
    size.on_gpu = job_.on_gpu;
    note_(fmt::format("Compressing it, calibrated on {} tokens, takes", size.calibration_tokens));
    foreseen_.memory = print_needs("memory", memory_needs(size), available_memory());
    if (job_.on_gpu) foreseen_.gpu_memory = print_needs("the GPU's memory", gpu_memory_needs(size), std::nullopt);
    const int64_t disk = disk_need(size);
    foreseen_.disk_bytes = disk;
    note_(fmt::format("{:<52} {:>10}", "disk, beside the output while it runs", bytes_text(disk)));
  }

  const Checkpoint& outline_;
  const Job& job_;
  const std::function<void(const std::string&)>& note_;
  const std::vector<LinearGroup> groups_;
  const int64_t fixed_, source_bytes_;
  ForeseenSizes foreseen_;
};

}  // namespace

nlohmann::json to_json(const ForeseenSizes& foreseen) {
  nlohmann::json sizes = nlohmann::json::array();
  for (const SizeInFormat& s : foreseen.sizes)
    sizes.push_back({{"format", s.format}, {"bytes", s.bytes}, {"bits_per_parameter", s.bits_per_parameter}});
  nlohmann::json json = {{"weights", false},
                         {"sizes", sizes},
                         {"cache_bytes_per_token", foreseen.cache_bytes_per_token},
                         {"memory", to_json(foreseen.memory)},
                         {"disk_bytes", foreseen.disk_bytes}};
  if (foreseen.asked_bytes) json["asked_bytes"] = *foreseen.asked_bytes;
  if (foreseen.gpu_memory) json["gpu_memory"] = to_json(*foreseen.gpu_memory);
  return json;
}

ForeseenSizes foresee_sizes(const Checkpoint& outline, const Job& job,
                            const std::function<void(const std::string&)>& note) {
  return SizeTable(outline, job, note).print();
}

}  // namespace fidelio
