#include <algorithm>
#include <iterator>

#include "app/options/common.h"
#include "app/quantize/quantize.h"
#include "compress/inputs/sets.h"
#include "compress/preflight.h"
#include "core/progress.h"

namespace fidelio::app {
namespace {

std::string duration_text(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  const double minutes = seconds / 60;
  if (minutes < 90) return fmt::format("{:.0f} min", minutes);
  return fmt::format("{:.1f} h", minutes / 60);
}

// Returns everything that the weights of an output depend on. The finished parts of an interrupted run are used only
// for the same job.
std::map<std::string, std::string> quantize_job(const Quantize& o, const Checkpoint& source, const Dataset& data,
                                                const Runner& runner) {
  return {{"program", FIDELIO_VERSION},
          {"verb", "quantize"},
          {"model", source.sha256()},
          {"calibration", sequences_sha256(data)},
          {"format", o.format},
          {"embedding", o.embedding},
          {"steps", fmt::format("{}", fmt::join(o.steps, ","))},
          {"rotated", o.rotate ? "yes" : "no"},
          {"seed", std::to_string(o.seed)},
          {"view", fmt::format("{} bits, weight {}", o.view_bits, o.view_weight)},
          {"paper", fmt::format("{} alpha {}", fmt::join(o.paper, ","), o.alpha)},
          {"gradient tokens", std::to_string(o.gradient_tokens)},
          {"kernels", runner.kernel_of(linears_of(runner.config()).at(1), Activations::f32)}};
}

}  // namespace

void check_room(const Quantize& o, const Checkpoint& source, const std::map<LinearId, FormatSpec>& formats) {
  constexpr int64_t kRest = 1'000'000;  // This is about the size of norms and the file's header.
  int64_t whole = kRest + static_cast<int64_t>(source.texts().read("tokenizer.json").value_or("").size()), made = 0;
  std::vector<LinearId> linears = linears_of(source.config());
  std::ranges::copy(kept_linears_of(source.config()), std::back_inserter(linears));
  for (LinearId id : linears) {
    const auto found = formats.find(id);
    const FormatSpec format = found == formats.end() ? source.format(id) : found->second;
    const Shape shape = shape_of(source.config(), id);
    const int64_t bytes = stored_bytes(format, shape[0], shape[1]);
    whole += bytes;
    if (found != formats.end()) made += bytes;
  }
  const bool journal = o.method == "gptq" && !o.atom;
  check_disk(o.out, whole + (journal ? made : 0),
             journal ? "the output and what is kept of an interrupted run" : "the output",
             "Choose another place for the output");
}

// Prints nothing for vector codes, whose time cannot be estimated so soon.
void foretell(const Quantize& o, const Checkpoint& source, const Dataset& data, Runner& runner, ThreadPool& pool) {
  const FormatSpec format = parse_target(o.format);
  if (quiet(o.json) || format.kind == Kind::vq || format.is_dense()) return;
  const Seconds time = quantising_time(source, format, !o.embedding.empty(), data, runner, pool);
  print_beside_progress(fmt::format("Calibrating on {} tokens takes about {} here; --method rtn rounds in seconds.\n",
                                    data.tokens, duration_text(time.wall)));
}

Kept::Kept(const Quantize& o, const Checkpoint& source, const Dataset& data, const Runner& runner)
    : folder_(o.out + ".journal") {
  if (o.atom) return;
  lock_.emplace(folder_);
  if (o.fresh) {
    Journal::remove(folder_);
    lock_.emplace(folder_);
  }
  journal_.emplace(folder_, quantize_job(o, source, data, runner));
  if (journal_->resumed() && !quiet(o.json))
    print_beside_progress(fmt::format("{}: an earlier run left {} finished parts, which are used\n", folder_,
                                      journal_->finished().first));
  set_words_on_interrupt(
      fmt::format("What was quantised is kept in {}: the same command goes on there and removes it at the end. --fresh "
                  "begins anew; "
                  "to give up, remove that folder.",
                  folder_));
}

void Kept::remove() {
  if (journal_) Journal::remove(folder_);
  journal_.reset();
}

Kept::~Kept() {
  try {
    if (journal_ && journal_->finished() == std::pair<int64_t, int64_t>{0, 0}) Journal::remove(folder_);
  } catch (const std::exception&) {  // The error that ended the run is the one to report.
  }
}

}  // namespace fidelio::app
