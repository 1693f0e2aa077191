// This file lets products of a decode step of few rows wait until the next operation is known (way 3 of
// cuda_state.h). A product of codes is launched together with the norm or gate that reads its outputs, so that no
// kernel stands between two products (LowbitJoin of lowbit.h). Products of vector codes are collected for one launch
// (vector_chain of vectors.h).
//
// With weights of codes, a layer of a decode step of one row is five launches:
//
//   call                    what it keeps              what it launches
//   norm(x)                 unwritten = norm of x
//   linear(q k v)           waiting = q k v            down of the layer before, which also makes the norm's blocks
//   rope_append(q, k, v)    fresh = these heads        q k v
//   attend(q)                                          attention, which also rotates and appends, and makes blocks
//   linear_add(o, x)        waiting = o
//   norm(x)                 unwritten = norm of x
//   linear(gate up)         waiting = gate up          o, which also makes the norm's blocks
//   gated(gate, up)         unwritten = their gate
//   linear_add(down, x)     waiting = down             gate and up, which store only the gate's blocks
#include <algorithm>

#include "kernels/cuda/backend/cuda_state.h"

namespace fidelio {

using cuda::LowbitJoin;

void Cuda::State::flush() {
  if (!chain.empty()) {
    const std::vector<cuda::VectorProduct> products = std::exchange(chain, {});
    cuda::vector_chain(stream, products, chain_arrived.as<uint32_t>());
  }
  if (waiting) {
    const Waiting w = *std::exchange(waiting, std::nullopt);
    cuda::lowbit_linear(stream, w.product, {w.upcoming, w.upcoming_count});
  }
  if (narrow.count > 0) cuda::narrow_product(stream, std::exchange(narrow, {}));
}

// The products read the same rows as others that may wait, and nothing that those write. They are launched behind them.
void Cuda::State::multiply_narrow(const Acts& input, std::span<const Product> products) {
  if (products.empty()) return;
  if (narrow.count > 0) flush();
  cuda::NarrowProduct p;
  p.columns = static_cast<int>(input.columns), p.rows = static_cast<int>(input.rows);
  if (source_version == input.version && source.norm && !source.taken) {
    p.x = source.x, p.norm = source.with, p.eps = source.eps;
  } else {
    write_values();
    p.x = input.values;
  }
  for (const auto& [w, y] : products)
    p.outputs[p.count++] = {w->values.half, w->values.single, w->factor, y, static_cast<int>(w->out)};
  narrow = p;
  if (!joining) flush();
}

// Launches the waiting product as one that also makes the blocks of `unwritten`, if `unwritten` is made of its
// outputs and the kernel can do so. Returns false, and launches nothing, otherwise.
bool Cuda::State::join_waiting(const cuda::Rounding& rounding) {
  if (!waiting || !unwritten.x || !unwritten.joins()) return false;
  cuda::LowbitProduct& product = waiting->product;
  const std::span<const cuda::LowbitOutput> outputs(product.outputs, static_cast<size_t>(product.count));
  const auto kind = unwritten.norm ? LowbitJoin::Kind::norm : LowbitJoin::Kind::gate;
  if (!cuda::joins(outputs, kind, product.x.rows) || outputs[0].y != unwritten.x || product.x.rows != unwritten.rows ||
      outputs[0].weight->shape.out != unwritten.columns || (!unwritten.norm && outputs[1].y != unwritten.with))
    return false;
  joined_in = 1 - joined_in;  // the product may be reading the other one
  grow(joined[joined_in], cuda::input_bytes(cuda::kMostJoined, column_blocks(max_columns)));
  grow(squares, cuda::kMostJoined * column_blocks(max_columns) * 4);
  product.join = {kind, joined[joined_in].as<uint8_t>(), unwritten.norm ? unwritten.with : nullptr, squares.as<float>(),
                  rounding};
  joined_norm = {unwritten.norm ? squares.as<float>() : nullptr, unwritten.eps};
  joined_version = version;
  joined_rounding = rounding;
  flush();
  if (!unwritten.norm) unwritten = {};  // the outputs of gate and up were not stored, so only the blocks exist
  return true;
}

bool Cuda::State::defer(const Acts& input, Outputs weights, bool add) {
  assert(is_alive(input) && "an Acts dies at the next call that returns one");
  if (!joining || weights.size() > cuda::kMaxTogether) return false;
  if (chaining && way_of(*weights[0].first, mode, RowKind::output) == Way::vectors)
    return defer_vectors(input, weights, add);
  const cuda::LowbitShape& first = seen_as(input, *weights[0].first).lowbit.shape;
  const cuda::Rounding rounding = rounding_for(weights[0].first->spec, input);
  for (const auto& [w, y] : weights)
    if (!is_integers(*w) || !goes_with(seen_as(input, *w).lowbit.shape, first) ||
        !(rounding_for(w->spec, input) == rounding))
      return false;

  Waiting next_one;
  cuda::LowbitProduct& product = next_one.product;
  const bool is_made = (joined_version == input.version && joined_rounding == rounding) || join_waiting(rounding);
  flush();
  if (is_made) {
    product.x = {joined[joined_in].as<uint8_t>(), static_cast<int>(input.rows)};
    product.norm = joined_norm;
  } else {
    prepare_blocks(input, rounding);
    product.x = prepared(input);
  }
  for (const auto& [w, y] : weights) product.outputs[product.count++] = {&seen_as(input, *w).lowbit, y->data()};
  product.add = add;
  // The kernels of a mode are one set even where they round nothing, so a step fetches the code of one.
  product.join.rounding = rounding;
  next_one.upcoming_count = std::exchange(next_count, 0);
  std::copy_n(next, next_one.upcoming_count, next_one.upcoming);
  waiting = next_one;
  return true;
}

bool Cuda::State::defer_vectors(const Acts& input, Outputs weights, bool add) {
  if (narrow.count > 0) flush();
  const cuda::VectorWeight& first = weights[0].first->values.vectors;
  std::vector<Product> products;
  for (const auto& [w, y] : weights) {
    if (way_of(*w, mode, RowKind::output) != Way::vectors || !w->values.vectors.goes_with(first)) return false;
    products.emplace_back(w, y->data());
  }
  const cuda::VectorProduct product = vector_product(input, products, add);
  if (waiting || chain.size() == cuda::kMostChained ||
      (!chain.empty() && chain[0].outputs[0].weight->form() != first.form()))
    flush();
  grow(chain_arrived, sizeof(uint32_t));
  chain.push_back(product);
  return true;
}

}  // namespace fidelio
