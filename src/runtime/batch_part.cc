#include "runtime/batch_part.h"

namespace fidelio {

bool has_both_kinds(const Batch& batch) {
  for (const Segment& s : batch.segments)
    if (s.kind != batch.segments[0].kind) return true;
  return false;
}

void take_kind(const Batch& whole, RowKind kind, BatchPart& part) {
  part.batch.clear();
  part.places.clear();
  for (const Segment& s : whole.segments) {
    if (s.kind != kind) continue;
    const auto first_row = static_cast<int32_t>(part.batch.ids.size());
    part.batch.append(std::span(whole.ids).subspan(static_cast<size_t>(s.first_row), static_cast<size_t>(s.rows)),
                      s.position, whole.pages_of(s), 0, kind);
    for (size_t i = 0; i < whole.logit_rows.size(); ++i) {
      const int32_t row = whole.logit_rows[i] - s.first_row;
      if (row < 0 || row >= s.rows) continue;
      part.batch.logit_rows.push_back(first_row + row);
      part.places.push_back(i);
    }
  }
}

}  // namespace fidelio
