// This file prepares activations in the forms that products read, and chooses the kernel of a product.
#include <algorithm>
#include <array>

#include "kernels/cuda/backend/cuda_state.h"
#include "kernels/cuda/backend/pack.h"
#include "kernels/cuda/rows/routes.h"

namespace fidelio {

void Cuda::State::grow(DeviceBuffer& buffer, int64_t bytes) {
  if (static_cast<int64_t>(buffer.size()) >= bytes) return;
  cuda::wait_for(stream);
  graphs.clear();
  buffer = DeviceBuffer();
  buffer = DeviceBuffer(static_cast<size_t>(bytes));
}

void Cuda::State::prepare_blocks(const Acts& input, const cuda::Rounding& rounding) {
  assert(is_alive(input) && "an Acts dies at the next call that returns one");
  write_values(rounding);
  if (blocks_version == input.version && blocks_rounding == rounding) return;
  // A norm's blocks are always made from its input, without the row's factor. Blocks made from its values would
  // include the factor and have other bits.
  if (source_version == input.version && source.norm && source.kind == RowKind::output) return write(source, rounding);
  cuda::prepare_input(stream, input.values, input.rows, input.columns, {blocks.as<uint8_t>(), rounding});
  blocks_version = input.version;
  blocks_rounding = rounding;
}

cuda::PreparedRows Cuda::State::blocks_for(RowKind of, const cuda::Rounding& rounding) {
  if (mode == Activations::f32 || of != RowKind::output) return {};
  blocks_version = version;
  blocks_rounding = rounding;
  return {blocks.as<uint8_t>(), rounding};
}

void Cuda::State::write(const Source& of, const cuda::Rounding& rounding) {
  flush();
  const cuda::PreparedRows prepared = blocks_for(of.kind, rounding);
  if (of.norm)
    cuda::rms_norm(stream, of.x, of.taken, of.with, of.eps, of.rows, of.columns, acts.as<float>(), prepared);
  else
    cuda::gated(stream, of.gate, of.x, of.with, of.rows, of.columns, acts.as<float>(), prepared);
}

void Cuda::State::make(const Source& of) {
  source = of;
  source_version = version;
  const bool asked = of.kind == RowKind::output ? joining || is_coarse(mode) : mode != Activations::f32 && of.joins();
  if (!asked) return write(of, {});
  unwritten = of;
}

void Cuda::State::prepare_halves(const Acts& input) {
  assert(is_alive(input) && "an Acts dies at the next call that returns one");
  if (halves_version == input.version) return;
  write_values();
  cuda::prepare_halves(stream, input.values, input.rows, input.columns, halves.as<uint16_t>(), half_factor.as<float>());
  halves_version = input.version;
}

cuda::Rounding Cuda::State::rounding_for(const FormatSpec& weight, const Acts& input) const {
  const bool codes = weight.kind == Kind::fp4 || weight.kind == Kind::mxfp4 ||
                     ((weight.kind == Kind::integer || weight.kind == Kind::grid) && weight.group % 32 == 0);
  if (!is_coarse(mode) || !codes) return {};
  const int group = static_cast<int>(activation_group(weight));
  cuda::Rounding how = cuda::rounding_of(group, (1 << (activation_bits(mode, weight) - 1)) - 1);
  if (input.fine > 0) how.fine_from = (static_cast<int>(input.columns - input.fine) + group - 1) / group * group;
  return how;
}

Cuda::Acts Cuda::State::seen_by(const FormatSpec& weight, const Acts& input) {
  const cuda::Rounding how = rounding_for(weight, input);
  if (how.lanes == 0) return input;
  assert(input.version == version && "an Acts dies at the next call that returns one");
  write_values();
  const uint64_t wanted = uint64_t{1} << 63 | version << 16 | static_cast<uint64_t>(how.lanes) << 8 |
                          static_cast<uint64_t>(activation_bits(mode, weight));
  if (rounded_version != wanted)
    cuda::round_to_integers(stream, input.values, input.rows, input.columns, how, rounded.as<float>());
  rounded_version = wanted;
  return {rounded.as<float>(), input.rows, input.columns, wanted, input.kind, input.whole, 0, 0};
}

// Prepares rows directly from what they are made of, even if some other product had them written. The bits are then
// those of the form that is read, whoever read before.
void Cuda::State::prepare_many(const Acts& input, const cuda::Rounding& rounding, bool integers) {
  assert(is_alive(input) && "an Acts dies at the next call that returns one");
  if (many_version == input.version && many_rows.rounding == rounding && many_rows.integers == integers) return;
  many_version = input.version;
  many_rows = {many.as<uint8_t>(), many_factor.as<float>(), nullptr, nullptr, 0, rounding, integers};
  const Source& of = source_version == input.version ? source : Source();
  if (!of.joins())
    cuda::prepare_many(stream, input.values, input.rows, input.columns, many_rows);
  else if (of.norm)
    cuda::rms_norm_many(stream, of.x, of.with, of.eps, of.rows, of.columns, many_rows);
  else
    cuda::swiglu_many(stream, of.x, of.with, of.rows, of.columns, many_rows);
}

void Cuda::State::multiply_together(const Acts& input, std::span<const Product> products) {
  flush();
  const Way way = way_of(*products[0].first, input);
  const cuda::LowbitShape& first_shape = seen_as(input, *products[0].first).lowbit.shape;
  const bool vectors = way == Way::vectors;
  const cuda::Rounding rounding = rounding_for(products[0].first->spec, input);
  const auto joins_first = [&](const Product& product) {
    const cuda::Linear& w = *product.first;
    return way_of(w, input) == way && (vectors ? w.values.vectors.goes_with(products[0].first->values.vectors)
                                               : goes_with(seen_as(input, w).lowbit.shape, first_shape) &&
                                                     rounding_for(w.spec, input) == rounding);
  };
  size_t together = 1;
  if (vectors || way == Way::codes || way == Way::many)
    while (together < std::min<size_t>(products.size(), cuda::kMaxTogether) && joins_first(products[together]))
      ++together;
  if (together < products.size()) {
    multiply_together(input, products.first(together));
    return multiply_together(input, products.subspan(together));
  }
  if (together == 1) return multiply(input, *products[0].first, products[0].second, false);
  if (vectors) return multiply_vectors(input, products, false);
  cuda::LowbitOutput outputs[cuda::kMaxTogether];
  for (size_t i = 0; i < products.size(); ++i)
    outputs[i] = {&seen_as(input, *products[i].first).lowbit, products[i].second};
  if (way == Way::many) return multiply_many(input, {outputs, products.size()}, rounding, false);
  multiply_blocks(input, {outputs, products.size()}, rounding, false);
}

void Cuda::State::multiply(const Acts& given, const cuda::Linear& w, float* y, bool add) {
  flush();
  const Way way = way_of(w, given);
  const Acts input = way == Way::codes || way == Way::many ? given : seen_by(w.spec, given);
  switch (way) {
    case Way::single:
      write_values();
      if (w.values.single && (input.kind == RowKind::output || w.out % 8 != 0) && !add && w.out <= cuda::kNarrowOutputs)
        return cuda::router_logits(stream, input.values, {w.values.single, w.bias.as<float>()}, input.rows, w.in,
                                   static_cast<int>(w.out), y);
      return exact.run(stream, gemm, seen_as(input, w), w.bias.as<float>(), input.values, input.rows, y, add);
    case Way::codes:
      return multiply_blocks(input, std::array{cuda::LowbitOutput{&seen_as(input, w).lowbit, y}},
                             rounding_for(w.spec, input), add);
    case Way::many:
      return multiply_many(input, std::array{cuda::LowbitOutput{&w.values.lowbit, y}}, rounding_for(w.spec, input),
                           add);
    case Way::dense:
      return multiply_dense(input, w, y, add);
    case Way::vectors:
      return multiply_vectors(input, std::array{Product{&w, y}}, add);
  }
}

void Cuda::State::multiply_many(const Acts& input, std::span<const cuda::LowbitOutput> outputs,
                                const cuda::Rounding& rounding, bool add) {
  prepare_many(input, rounding, std::ranges::all_of(outputs, [&](const cuda::LowbitOutput& o) {
                 return cuda::takes_integers(*o.weight, rounding);
               }));
  cuda::lowbit_many(stream, many_rows, input.rows, outputs, add);
}

void Cuda::State::multiply_blocks(const Acts& input, std::span<const cuda::LowbitOutput> outputs,
                                  const cuda::Rounding& rounding, bool add) {
  prepare_blocks(input, rounding);
  cuda::lowbit_linear(stream, prepared(input), outputs, add, take_upcoming());
}

cuda::VectorProduct Cuda::State::vector_product(const Acts& input, std::span<const Product> products, bool add) {
  cuda::VectorProduct product;
  for (const auto& [w, y] : products) product.outputs[product.count++] = {&w->values.vectors, y};
  product.input = {input.values, input.rows};
  product.add = add;
  using Kind = cuda::VectorInput::Kind;
  if (!unwritten.x || !unwritten.joins() || mode == Activations::f32 || !cuda::makes_vector_input(product)) {
    write_values();
    return product;
  }
  product.input.kind = unwritten.norm ? Kind::norm : Kind::gate;
  product.input.x = unwritten.x, product.input.with = unwritten.with, product.input.eps = unwritten.eps;
  return product;
}

void Cuda::State::multiply_vectors(const Acts& input, std::span<const Product> products, bool add) {
  assert(is_alive(input) && "an Acts dies at the next call that returns one");
  cuda::vector_linear(stream, vector_product(input, products, add), mode == Activations::f32);
}

void Cuda::State::multiply_dense(const Acts& input, const cuda::Linear& w, float* y, bool add) {
  prepare_halves(input);
  const uint16_t* weight = w.values.half;
  const cuda::WeightValues& seen = seen_as(input, w);
  const float weight_factor = &seen == &w.values ? w.factor : seen.factor;
  if (!weight) {
    grow(dequantised, w.out * w.in * 2);  // the weight may have been packed by another backend on the same device
    if (w.values.vectors.codes)
      cuda::dequantise_vectors(stream, w.values.vectors, weight_factor, dequantised.as<uint16_t>());
    else
      cuda::dequantise(stream, seen.lowbit, weight_factor, dequantised.as<uint16_t>());
    weight = dequantised.as<uint16_t>();
  }
  // Rows may have a factor. While the product is added, y is in units of it.
  const float *factor = half_factor.as<float>(), *bias = w.bias.as<float>();
  if (add) cuda::divide_rows(stream, factor, input.rows, w.out, y);
  gemm.run(stream, weight, halves.as<uint16_t>(), weight_factor, input.rows, w.out, w.in, y, add);
  cuda::finish_rows(stream, factor, bias, input.rows, w.out, y);
}

// Cuts the output rows of each sequence into as few units as they fit in, as even as possible. The shape of a launch
// of units is part of a step's shape, and each shape is recorded by itself. It should not depend on whose rows they
// are. More than four units are therefore counted in fours, where the last ones have no rows; the rows of a sequence
// are counted in fours too, and a unit is as tall as its tiles of eight queries. Few units are counted as they are,
// because units without rows would take thread blocks from the others.
void Cuda::State::cut_units(const Batch& batch, const AttentionShape& shape, std::vector<int32_t>& table) {
  units = {};
  if (kind != RowKind::output) return;
  int64_t positions = 0;
  for (const Segment& segment : batch.segments) {
    units.of_sequence = std::max(units.of_sequence, segment.rows);
    positions = std::max(positions, int64_t{segment.position} + segment.rows);
  }
  if (units.of_sequence == 1) return;
  const auto in_fours = [](int n) { return (n + 3) / 4 * 4; };
  units.of_sequence = in_fours(units.of_sequence);
  const int together = cuda::rows_together(shape.heads, shape.kv_heads, shape.head_dim,
                                           static_cast<int>(batch.segments.size()), units.of_sequence, positions);
  if (together == 1) return;
  for (const Segment& segment : batch.segments) {
    const int count = (segment.rows + together - 1) / together;
    for (int i = 0; i < count; ++i) {
      const int before = segment.rows * i / count, rows = segment.rows * (i + 1) / count - before;
      table.insert(table.end(), {segment.first_row + before, rows, before});
      units.rows = std::max(units.rows, rows);
    }
    units.count += count;
  }
  for (; units.count > 4 && units.count % 4 != 0; ++units.count) table.insert(table.end(), {0, 0, 0});
  units.rows = cuda::rows_of_tiles(shape.heads, shape.kv_heads, units.rows);
}

cuda::AttentionArguments Cuda::State::arguments(const KvCache& cache, int layer) const {
  const AttentionShape& s = cache.shape;
  cuda::AttentionArguments a{static_cast<int>(rows),
                             s.heads,
                             s.kv_heads,
                             s.head_dim,
                             s.layers[static_cast<size_t>(layer)].window,
                             positions,
                             page_of,
                             sequence,
                             pages_per_sequence,
                             kind_of(cache.format),
                             nullptr,
                             nullptr,
                             nullptr,
                             nullptr,
                             units};
  const int64_t slots = cache.pages * s.kv_heads * kPageTokens, half = slots * s.head_dim * element_bytes(cache.format);
  const int64_t scales = slots * scale_bytes(cache.format);
  std::byte* at = cache.storage.as<std::byte>() + layer * 2 * (half + scales);
  a.keys = at;
  a.values = at + half;
  a.key_scales = reinterpret_cast<float*>(at + 2 * half);
  a.value_scales = reinterpret_cast<float*>(at + 2 * half + scales);
  return a;
}

}  // namespace fidelio
