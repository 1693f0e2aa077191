#include "runtime/execution/logits_of.h"

#include <algorithm>

#include "runtime/page_table.h"
#include "step/own_slot.h"

namespace fidelio {

void for_logits(Runner& runner, std::span<const int32_t> ids, Reading reading,
                const std::function<void(std::span<const float>)>& take) {
  const auto n = static_cast<int64_t>(ids.size());
  check(n > 0, "there are no logits of an empty sequence");
  runner.reserve_states(1);
  PageTable pages(runner.cache_pages());
  check(pages.grow(0, n), "a sequence of {} tokens does not fit a cache of {} pages", n, runner.cache_pages());
  const int64_t chunk = std::min(runner.options().max_rows, runner.options().max_logit_rows);
  for (int64_t begin = 0; begin < n; begin += chunk) {
    const int64_t count = std::min(chunk, n - begin);
    Batch batch;
    batch.append(ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), begin, pages.pages(0), count,
                 RowKind::output);
    continue_in_slot(runner.program().state, batch, 0);
    take(runner.step(batch, reading));
  }
}

}  // namespace fidelio
