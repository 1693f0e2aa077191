#include "io/gguf/orders.h"

#include <numeric>

#include "io/gguf/config.h"

namespace fidelio::gguf {
namespace {

// Appends to `order` the places of all value heads of `rows` rows each, which begin where the order ends.
void append_tiled(const DeltaNet& n, int64_t rows, Order& order) {
  const auto begin = static_cast<int64_t>(order.size());
  const int64_t shared = n.value_heads / n.key_heads;
  for (int64_t head = 0; head < n.value_heads; ++head)
    for (int64_t row = 0; row < rows; ++row)
      order.push_back(begin + (head % shared * n.key_heads + head / shared) * rows + row);
}

Order tiled(const DeltaNet& n, int64_t before, int64_t rows) {
  Order order(static_cast<size_t>(before));
  std::iota(order.begin(), order.end(), 0);
  append_tiled(n, rows, order);
  return order;
}

bool heads_are_tiled(const ModelConfig& c, std::string_view architecture) {
  return (architecture == "qwen35" || architecture == "qwen35moe") && c.delta.key_heads != c.delta.value_heads;
}

}  // namespace

Order row_order(const ModelConfig& c, LinearId id, std::string_view architecture) {
  if (rows_are_paired(architecture) && (id.role == Role::q || id.role == Role::k)) {
    Order order(static_cast<size_t>(shape_of(c, id)[0]));
    for (size_t r = 0; r < order.size(); ++r) order[r] = paired_row(static_cast<int64_t>(r), c.e);
    return order;
  }
  const DeltaNet& n = c.delta;
  if (gates_are_fused(architecture) && (id.role == Role::delta_b || id.role == Role::delta_a)) {
    Order order;
    for (const RowRun& run : fused_name(c, id).runs)
      for (int64_t row = 0; row < run.rows; ++row) order.push_back(run.first_row + row);
    return order;
  }
  if (!heads_are_tiled(c, architecture)) return {};
  switch (id.role) {
    case Role::delta_qkv:
      return tiled(n, 2 * n.keys(), n.value_dim);
    case Role::delta_z:
      return tiled(n, 0, n.value_dim);
    case Role::delta_b:
    case Role::delta_a:
      return tiled(n, 0, 1);
    default:
      return {};
  }
}

Order column_order(const ModelConfig& c, LinearId id, std::string_view architecture) {
  return id.role == Role::delta_out && heads_are_tiled(c, architecture) ? tiled(c.delta, 0, c.delta.value_dim)
                                                                        : Order{};
}

Order delta_order(const ModelConfig& c, DeltaTensor which, std::string_view architecture) {
  if (!heads_are_tiled(c, architecture)) return {};
  return which == DeltaTensor::convolution ? tiled(c.delta, 2 * c.delta.keys(), c.delta.value_dim)
                                           : tiled(c.delta, 0, 1);
}

Order inverse(const Order& order) {
  Order places(order.size());
  for (size_t i = 0; i < order.size(); ++i) places[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  return places;
}

bool moves_blocks(const Order& columns) {
  for (size_t i = 0; i < columns.size(); ++i)
    if (i % 32 == 0 ? columns[i] % 32 != 0 : columns[i] != columns[i - 1] + 1) return false;
  return columns.size() % 32 == 0;
}

bool gates_are_fused(std::string_view architecture) { return architecture == "qwen3next"; }

}  // namespace fidelio::gguf
