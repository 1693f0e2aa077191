// This file checks that the FP16 scales of formats can hold a model's weights (quantize_model.h).
#include <spdlog/spdlog.h>

#include <algorithm>

#include "core/thread_pool.h"
#include "formats/half_scales.h"
#include "quant/quantize_model.h"

namespace fidelio {
namespace {

// Measures what each format loses. Rows are summed in their order, so the result is the same for any number of
// threads.
std::vector<HalfLoss> half_losses(const LinearWeight& w, std::span<const FormatSpec> formats, ThreadPool& pool) {
  constexpr int64_t kRows = 4096;  // rows whose losses are kept at a time
  const size_t n = formats.size();
  std::vector<HalfLoss> all(n);
  for (int64_t begin = 0; begin < w.out; begin += kRows) {
    std::vector<HalfLoss> rows(static_cast<size_t>(std::min(kRows, w.out - begin)) * n);
    pool.run_ranges(std::min(kRows, w.out - begin), [&](int64_t first, int64_t last, int) {
      std::vector<float> values(static_cast<size_t>(w.in));
      for (int64_t row = first; row < last; ++row) {
        decode_row(w, begin + row, values);
        for (size_t f = 0; f < n; ++f) rows[static_cast<size_t>(row) * n + f] = half_loss(formats[f], values);
      }
    });
    for (size_t i = 0; i < rows.size(); ++i) all[i % n].add(rows[i]);
  }
  return all;
}

}  // namespace

void check_half_scales(const Checkpoint& source, const std::map<LinearId, FormatSpec>& formats, ThreadPool& pool) {
  for (const auto& [id, spec] : formats) {
    if (!has_half_scales(spec) || spec == source.format(id)) continue;
    const HalfLoss loss = half_losses(source.linear(id), {&spec, 1}, pool).front();
    source.drop(id);
    if (loss.lost == 0) continue;
    const std::string about = about_half_loss(to_string(id), spec, loss);
    check(!loss.is_harmful(), "{}", about);
    spdlog::warn("{}", about);
  }
}

std::vector<std::string> beyond_half_scales(const Checkpoint& source, const std::vector<LinearId>& linears,
                                            std::span<const FormatSpec> formats, ThreadPool& pool) {
  std::vector<FormatSpec> asked;
  std::ranges::copy_if(formats, std::back_inserter(asked), has_half_scales);
  std::vector<std::string> first(asked.size());
  std::vector<int> count(asked.size());
  for (size_t i = 0; i < linears.size() && !asked.empty(); ++i) {
    const std::vector<HalfLoss> losses = half_losses(source.linear(linears[i]), asked, pool);
    source.drop(linears[i]);
    for (size_t f = 0; f < asked.size(); ++f)
      if (losses[f].is_harmful() && count[f]++ == 0)
        first[f] = about_half_loss(to_string(linears[i]), asked[f], losses[f]);
  }
  std::vector<std::string> lines;
  for (size_t f = 0; f < asked.size(); ++f)
    if (count[f] > 0)
      lines.push_back(count[f] == 1 ? first[f] : fmt::format("{} (and of {} more linears)", first[f], count[f] - 1));
  return lines;
}

}  // namespace fidelio
