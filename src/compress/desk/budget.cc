#include "compress/desk/budget.h"

#include <algorithm>
#include <limits>
#include <string>

#include "quant/quantize_model.h"

namespace fidelio {

int64_t bytes_asked(const Job& job, int64_t parameters) {
  if (job.bytes > 0 || job.bits == 0) return job.bytes;
  // A size below a byte still is a size, and one beyond all files is as good as any.
  constexpr double kMost = 0x1p62;
  return static_cast<int64_t>(std::clamp(job.bits * static_cast<double>(parameters) / 8, 1.0, kMost));
}

Budget::Budget(const Job& job, const Checkpoint& source, const std::vector<LinearGroup>& groups, const JobTexts& texts,
               int64_t record_bytes)
    : job_(job),
      source_(source),
      groups_(groups),
      texts_(texts),
      record_bytes_(record_bytes),
      bytes_(bytes_asked(job, source.parameters())) {}

// The header holds names, shapes, offsets and hashes of the tensors (some 100 characters and the name each), hashes of
// files, the formats, the plan and the certificate.
int64_t Budget::header_bytes(const std::map<LinearId, FormatSpec>& formats) const {
  // A certificate has its own words, a name of each document and a row of each domain. Samples that plans are tuned on
  // are not written yet: each will have a hash, and they have at most as many shingles as the record has now.
  const int64_t samples = job_.tune ? 64 + job_.tune_tokens / job_.context : 0;
  int64_t bytes = 8192 + 4096 + record_bytes_ + (job_.tune ? record_bytes_ + 20 * samples : 0) +
                  60 * static_cast<int64_t>(groups_.size()) +
                  48 * static_cast<int64_t>(texts_.certificate.documents.size()) +
                  1024 * static_cast<int64_t>(texts_.certificate.domains().size());
  bytes += 18 * static_cast<int64_t>(texts_.dealt.left_out.size());
  for (const std::string& text : job_.texts) bytes += 2 * static_cast<int64_t>(text.size()) + 40;
  const ModelConfig& config = source_.config();
  for (LinearId id : linears_of(config)) {
    const auto found = formats.find(id);
    const FormatSpec format = found == formats.end() ? source_.format(id) : found->second;
    const size_t tensors = 1 + stored_tensors(allocate_weight(format, 1, shape_of(config, id)[1])).size();
    bytes += 60 + static_cast<int64_t>(tensors * (module_name(id).size() + 108));
  }
  for (const auto& [layer, norm] : norms_of(config))
    bytes += static_cast<int64_t>(norm_name(config, layer, norm).size()) + 96;
  for (const auto& [name, shape] : tensors_of_routers(config)) bytes += static_cast<int64_t>(name.size()) + 116;
  const std::map<LinearId, FormatSpec> predictor = predictor_formats(source_);
  for (const LinearId id : predictor_linears_of(config)) {
    const auto found = predictor.find(id);
    const FormatSpec format = found == predictor.end() ? source_.format(id) : found->second;
    const size_t tensors = stored_tensors(allocate_weight(format, 1, shape_of(config, id)[1])).size();
    bytes += 60 + static_cast<int64_t>(tensors * (module_name(id).size() + 116));
  }
  for (const auto& [layer, norm] : predictor_norms_of(config))
    bytes += static_cast<int64_t>(norm_name(config, layer, norm).size()) + 116;
  if (config.predictor && has_experts(config, kPredictorLayer))
    bytes += static_cast<int64_t>(router_name(config, kPredictorLayer).size()) + 116;
  for (const LinearId id : fixed_linears_of(config)) bytes += static_cast<int64_t>(weight_name(id).size()) + 116;
  for (const int layer : delta_layers(config))
    for (const DeltaTensor which : kDeltaTensors) bytes += static_cast<int64_t>(delta_name(layer, which).size()) + 116;
  return bytes;
}

bool Budget::fits(int64_t weight_bytes, const std::map<LinearId, FormatSpec>& formats) const {
  return !given() || weight_bytes + header_bytes(formats) <= bytes_;
}

void Budget::check_possible() const {
  if (!given()) return;
  int64_t smallest = fixed_bytes(source_, groups_);
  std::map<LinearId, FormatSpec> formats;
  for (const LinearGroup& g : groups_) {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (const FormatSpec& f : job_.formats) {
      int64_t bytes = 0;
      for (LinearId id : g.linears) {
        const Shape shape = shape_of(source_.config(), id);
        bytes += stored_bytes(f, shape[0], shape[1]);
      }
      if (bytes >= least) continue;
      least = bytes;
      for (LinearId id : g.linears) formats[id] = f;
    }
    smallest += least;
  }
  std::map<std::string, int64_t> codebooks;
  for (const auto& [id, f] : formats) codebooks[shared_name(f)] = shared_bytes(f);
  for (const auto& [name, bytes] : codebooks) smallest += bytes;
  smallest += header_bytes(formats);
  check(smallest <= bytes_,
        "no plan of these formats fits {} bytes: the smallest takes {}, {:.3f} bits a parameter. Ask for that much, or "
        "offer narrower formats (--formats)",
        bytes_, smallest, 8.0 * static_cast<double>(smallest) / static_cast<double>(source_.parameters()));
}

}  // namespace fidelio
