#include "kernels/cuda/backend/pack.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/thread_pool.h"
#include "formats/grid_curve.h"
#include "formats/small_float.h"
#include "kernels/cuda/linear/dense/gemm.h"

namespace fidelio::cuda {
namespace {

DeviceBuffer uploaded(Stream stream, const Tensor& tensor) {
  DeviceBuffer buffer(static_cast<size_t>(tensor.bytes()));
  to_device(stream, buffer.data(), tensor.data, buffer.size());
  return buffer;
}

// Returns the power of two by which values are divided so that the largest lies in [2^14, 2^15). The rest of FP16's
// range is for the small ones.
float factor_of(Stream stream, const DeviceBuffer& amax) {
  float largest = 0;
  from_device(stream, &largest, amax.data(), sizeof largest);
  if (!(largest > 0) || !std::isfinite(largest)) return 1;
  int exponent;
  std::frexp(largest, &exponent);
  return std::ldexp(1.0f, std::max(exponent, -100) - 15);
}

bool has_kernel(const FormatSpec& spec) {
  const bool group = spec.group == 32 || spec.group == 64 || spec.group == 128 || spec.group == 0;
  if (spec.kind == Kind::integer) return spec.below == 0 && spec.bits >= 2 && spec.bits <= 8 && group;
  return spec.kind == Kind::grid && spec.bits >= 2 && spec.bits <= 6 && group;
}

// Returns a grid's entries followed by the terms of its curve, if it has one (LowbitWeight::grid).
DeviceBuffer uploaded_grid(Stream stream, std::span<const int8_t> entries, const std::optional<GridCurve>& curve) {
  OwnedTensor all = OwnedTensor::allocate(DType::i8, {static_cast<int64_t>(entries.size() + (curve ? 8 : 0))});
  std::copy(entries.begin(), entries.end(), all.as<int8_t>().begin());
  if (curve) {
    const f16 terms[4] = {to_f16(curve->a1), to_f16(curve->a3), to_f16(curve->a5),
                          to_f16(static_cast<float>(1664 + curve->a0))};
    std::memcpy(all.as<int8_t>().data() + entries.size(), terms, sizeof terms);
  }
  return uploaded(stream, all.view);
}

// MXFP4 is a grid of 16 entries, twice E2M1, with scales that are powers of two. A grid's scales are signed bytes times
// a number of each row, which holds seven powers; the result is empty if the blocks of a row have more. A block of
// zeros may have any scale.
std::optional<LinearWeight> as_grid(const LinearWeight& weight) {
  const auto& from = std::get<FpBlock>(weight.main);
  LinearWeight grid =
      allocate_weight({.kind = Kind::grid, .bits = 4, .group = weight.spec.group}, weight.out, weight.in);
  auto& to = std::get<VectorCode>(grid.main);
  to.codes = from.codes;
  for (size_t q = 0; q < kE2m1.size(); ++q) to.codebook.as<int8_t>()[q] = static_cast<int8_t>(2 * kE2m1[q]);
  const int64_t groups = weight.spec.groups(weight.in), group = weight.spec.group;
  std::vector<uint8_t> codes(static_cast<size_t>(weight.in));
  for (int64_t row = 0; row < weight.out; ++row) {
    from.codes.get_row(row, codes);
    const auto power = [&](int64_t g) -> int {  // -1 for a block of zeros
      const auto begin = codes.begin() + g * group, end = codes.begin() + std::min(weight.in, (g + 1) * group);
      const bool zeros = std::all_of(begin, end, [](uint8_t q) { return (q & 7) == 0; });
      return zeros ? -1 : from.scale.as<const uint8_t>()[static_cast<size_t>(row * groups + g)];
    };
    int least = 255, most = 0;
    for (int64_t g = 0; g < groups; ++g)
      if (const int s = power(g); s >= 0) least = std::min(least, s), most = std::max(most, s);
    const bool zeros = least == 255;
    if (!zeros && (most > least + 6 || least < 2)) return std::nullopt;  // the row's number must not be subnormal
    to.row_scale.as<float>()[static_cast<size_t>(row)] = zeros ? 1 : std::ldexp(1.0f, least - 128);
    for (int64_t g = 0; g < groups; ++g)
      to.scale.as<int8_t>()[static_cast<size_t>(row * groups + g)] =
          static_cast<int8_t>(power(g) < 0 ? 0 : 1 << (power(g) - least));
  }
  return grid;
}

// Packs codes. A channel-wise weight is packed as one with groups of 128 that share a scale.
void pack_codes(Stream stream, const LinearWeight& weight, Linear& to) {
  LowbitShape shape{weight.spec.kind == Kind::grid ? CodeKind::grid : CodeKind::integer,
                    weight.spec.bits,
                    weight.spec.group == 0 ? kBlockColumns : weight.spec.group,
                    weight.spec.kind == Kind::integer && weight.spec.scale == ScaleKind::u8,
                    weight.out,
                    weight.in};
  CanonicalWeight from;
  from.groups = weight.spec.groups(weight.in);
  from.group_columns = weight.spec.group_size(weight.in);
  const Codes* codes;
  DeviceBuffer planes[3], scale, zero;
  if (const auto* w = std::get_if<IntGroup>(&weight.main)) {
    codes = &w->codes;
    scale = uploaded(stream, w->scale.view);
    if (!weight.spec.symmetric) zero = uploaded(stream, w->zero.view);
    if (shape.byte_scale) to.row_factor = uploaded(stream, w->row_scale.view);
  } else {
    const auto& grid = std::get<VectorCode>(weight.main);
    codes = &grid.codes;
    scale = uploaded(stream, grid.scale.view);
    to.row_factor = uploaded(stream, grid.row_scale.view);
    const auto entries = grid.codebook.as<const int8_t>();
    const std::optional<GridCurve> curve = curve_of(entries);
    if (curve) shape.kind = CodeKind::curve;
    to.grid = uploaded_grid(stream, entries, curve);
  }
  for (size_t i = 0; i < codes->planes.size(); ++i) {
    planes[i] = uploaded(stream, codes->planes[i].view);
    from.planes[i] = planes[i].as<uint8_t>();
  }
  from.scale = scale.data();
  from.zero = zero.as<uint8_t>();
  to.codes = DeviceBuffer(static_cast<size_t>(shape.bytes()));
  pack_lowbit(stream, shape, from, to.codes.as<uint8_t>());
  to.values.lowbit = {shape,
                      to.codes.as<uint8_t>(),
                      to.row_factor.as<float>(),
                      to.bias.as<float>(),
                      to.grid.as<int8_t>(),
                      1.0f,
                      weight.spec.kind == Kind::integer && weight.spec.symmetric};
  DeviceBuffer amax(sizeof(float));
  largest_value(stream, to.values, amax.as<float>());
  to.factor = factor_of(stream, amax);  // this waits, so the canonical tensors may go
  if (shape.kind == CodeKind::integer && shape.bits > 4) {
    to.view = to.values;
    to.view.lowbit.shape.below = shape.bits - 4;
    largest_value(stream, to.view, amax.as<float>());  // amax is raised to the largest of both
    to.view.factor = factor_of(stream, amax);
  }
}

void pack_dense(Stream stream, const Tensor& w, Linear& to) {
  const auto elements = static_cast<size_t>(w.elements());
  // cuBLASLt has no products of few rows and few outputs unless these are a multiple of 8.
  const bool odd = to.out <= kNarrowOutputs && to.out % 8 != 0;
  if (w.dtype == DType::f32 || !Gemm::takes(to.in) || odd) {
    OwnedTensor single = OwnedTensor::allocate(DType::f32, {to.out, to.in});
    convert_to_float(w, single.as<float>());
    to.codes = uploaded(stream, single.view);
    wait_for(stream);
    to.values.single = to.codes.as<float>();
    return;
  }
  to.codes = DeviceBuffer(elements * 2);
  if (w.dtype == DType::f16) {
    to_device(stream, to.codes.data(), w.data, elements * 2);
  } else {
    const DeviceBuffer raw = uploaded(stream, w);
    DeviceBuffer amax(sizeof(float));
    bf16_largest(stream, raw.as<uint16_t>(), w.elements(), amax.as<float>());
    to.factor = factor_of(stream, amax);
    bf16_to_half(stream, raw.as<uint16_t>(), w.elements(), to.factor, to.codes.as<uint16_t>());
    wait_for(stream);
  }
  to.values.half = to.codes.as<uint16_t>();
  to.values.factor = to.factor;
  to.values.lowbit = {{CodeKind::half, 16, kBlockColumns, false, to.out, to.in},
                      to.codes.as<uint8_t>(),
                      nullptr,
                      to.bias.as<float>(),
                      nullptr,
                      to.factor};
}

// Appends values to a buffer that is put together on the host. Returns where they begin, which is a multiple of 128
// bytes.
template <typename T>
size_t append(std::vector<std::byte>& bytes, std::span<const T> values) {
  const size_t at = (bytes.size() + 127) / 128 * 128;
  bytes.resize(at + values.size_bytes());
  if (!values.empty()) std::memcpy(bytes.data() + at, values.data(), values.size_bytes());
  return at;
}

// A Meeting is lanes that read shared memory at the same time. It chooses from which of its two places each centroid
// is read.
struct Meeting {
  static constexpr int kLanes = 16;
  int place[kLanes][2] = {}, chosen[kLanes] = {}, count[16] = {};
  int lanes = 0, most = 1;  // `most` lanes may meet on a pair of banks

  // Finds a place for a lane, and moves other lanes to their other place if that is needed. Pairs of banks in `seen`
  // were tried already.
  bool settle(int lane, uint32_t& seen) {
    for (int choice = 0; choice < 2; ++choice) {
      const int bank = place[lane][choice] % 16;
      if (seen >> bank & 1) continue;
      seen |= 1u << bank;
      if (count[bank] < most) return chosen[lane] = choice, ++count[bank], true;
      for (int other = 0; other < lanes; ++other) {
        if (chosen[other] < 0 || place[other][chosen[other]] % 16 != bank) continue;
        const int was = std::exchange(chosen[other], -1);
        if (settle(other, seen)) return chosen[lane] = choice, true;
        chosen[other] = was;
      }
    }
    return false;
  }
  bool settle_all() {
    std::fill_n(count, 16, 0);
    std::fill_n(chosen, kLanes, -1);
    for (int lane = 0; lane < lanes; ++lane)
      if (uint32_t seen = 0; !settle(lane, seen)) return false;
    return true;
  }
};

// Chooses the places of up to 16 centroids so that as few as possible meet on a pair of banks. It begins with two,
// because an arrangement in which none meet is too rare to look for.
void choose_places(std::span<int> centroids) {
  Meeting meeting;
  meeting.lanes = static_cast<int>(centroids.size());
  for (int lane = 0; lane < meeting.lanes; ++lane) {
    meeting.place[lane][0] = centroids[static_cast<size_t>(lane)];
    meeting.place[lane][1] = second_place(centroids[static_cast<size_t>(lane)]);
  }
  do ++meeting.most;
  while (!meeting.settle_all());
  for (int lane = 0; lane < meeting.lanes; ++lane)
    centroids[static_cast<size_t>(lane)] = meeting.place[lane][meeting.chosen[lane]];
}

// Writes the records of a unit (vectors.h), which has the rows from `first` on.
void pack_unit(const VectorWeight& w, const SignedVectors& m, int64_t first, std::byte* records) {
  const int64_t rows = std::min<int64_t>(kVectorUnit, w.out - first), padded = int64_t{w.spans.by} * kVectorSpan;
  std::vector<VectorChoice> choices(static_cast<size_t>(kVectorUnit * padded));
  std::vector<int> places(choices.size());
  const auto at = [&](int64_t row, int64_t v) { return static_cast<size_t>(row * padded + v); };
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t v = 0; v < w.vectors; ++v) {
      const VectorChoice choice = choices[at(row, v)] = get_vector(m, first + row, v);
      places[at(row, v)] = choice.index + (w.signs == 1 && choice.signs ? w.entries : 0);
    }
  for (int64_t row = 0; w.high && row < kVectorUnit; row += 4)  // half a warp reads a chunk of four rows at once
    for (int64_t v = 0; v < padded; v += 4) {
      std::array<int, Meeting::kLanes> meet;
      for (int64_t i = 0; i < Meeting::kLanes; ++i) meet[static_cast<size_t>(i)] = places[at(row + i / 4, v + i % 4)];
      choose_places(meet);
      for (int64_t i = 0; i < Meeting::kLanes; ++i) places[at(row + i / 4, v + i % 4)] = meet[static_cast<size_t>(i)];
    }
  for (int64_t row = 0; row < kVectorUnit; ++row)
    for (int64_t v = 0; v < padded; ++v) {
      const VectorSlot slot(row, v);
      std::byte* record = records + slot.span * w.record_bytes();
      const auto place = static_cast<uint16_t>(places[at(row, v)] * (w.high ? 8 : 1));
      if (w.high)
        std::memcpy(record + slot.byte_at(2 * slot.code), &place, sizeof place);
      else
        record[slot.byte_at(slot.code)] = static_cast<std::byte>(place);
      for (int j = 0; j < w.signs && w.signs > 1; ++j)
        if (const int bit = slot.sign_bit(w.signs, j); choices[at(row, v)].signs >> j & 1)
          record[w.sign_at() + slot.byte_at(bit / 8)] |= std::byte{1} << (bit % 8);
    }
}

// Returns the records of all units, made by all threads.
std::vector<std::byte> vector_records(const VectorWeight& w, const SignedVectors& m) {
  const int64_t bytes = int64_t{w.spans.by} * w.record_bytes();
  std::vector<std::byte> records(static_cast<size_t>(w.units.by * bytes));
  ThreadPool pool;
  pool.run(w.units.by, [&](int64_t unit, int) { pack_unit(w, m, unit * kVectorUnit, records.data() + unit * bytes); });
  return records;
}

std::vector<float> converted(std::span<const f16> from) {
  std::vector<float> to;
  for (const f16 x : from) to.push_back(to_float(x));
  return to;
}

void pack_vectors(Stream stream, const LinearWeight& weight, Linear& to) {
  const auto& m = std::get<SignedVectors>(weight.main);
  const VectorShape& s = m.shape;
  VectorWeight& w = to.values.vectors;
  w.out = weight.out, w.in = weight.in, w.vectors = s.vectors;
  w.units = Divisor(static_cast<uint32_t>((w.out + kVectorUnit - 1) / kVectorUnit));
  w.blocks = Divisor(static_cast<uint32_t>(s.blocks)), w.entries = static_cast<int>(s.entries);
  w.groups = (s.vectors + kVectorGroup - 1) / kVectorGroup;
  w.spans = Divisor(static_cast<uint32_t>((s.vectors + kVectorSpan - 1) / kVectorSpan));
  w.signs = s.signs;
  w.high = s.has_high;
  check(w.in <= most_vector_columns(),
        "{} of {} x {}: this GPU multiplies vector codes of at most {} columns; use another format or --device cpu",
        to_string(weight.spec), w.out, w.in, most_vector_columns());
  check(w.fits(),
        "{} of {} x {} in {} blocks: larger than the CUDA backend can address; use another format or --device cpu",
        to_string(weight.spec), w.out, w.in, s.blocks);
  const std::span<const f16> columns_of = m.column_scale.as<const f16>();
  std::vector<f16> column(columns_of.begin(), columns_of.end());
  column.resize(static_cast<size_t>(8 * s.vectors));
  std::vector<std::byte> bytes;
  std::vector<float> rows = converted(m.row_scale.as<const f16>());
  rows.resize((rows.size() + kVectorUnit - 1) / kVectorUnit * kVectorUnit);
  const size_t codes = append<std::byte>(bytes, vector_records(w, m)),
               book = append<int8_t>(bytes, m.codebook.as<const int8_t>()), row = append<float>(bytes, rows),
               columns = append<f16>(bytes, column);
  size_t begin = 0, value = 0, tag = 0;
  if (s.sparse > 0) {
    std::vector<int32_t> begins(1, 0);
    for (const uint16_t count : m.sparse_count.as<const uint16_t>()) begins.push_back(begins.back() + count);
    begin = append<int32_t>(bytes, begins);
    value = append<int8_t>(bytes, m.sparse_value.as<const int8_t>());
    const auto places = m.sparse_index.as<const uint16_t>();
    const auto scales = m.sparse_scale.as<const f16>();
    std::vector<uint32_t> tags(places.size());
    for (size_t i = 0; i < tags.size(); ++i) tags[i] = places[i] | uint32_t{scales[i].bits} << 16;
    tag = append<uint32_t>(bytes, tags);
    w.corrections = s.sparse;
  }
  bytes.resize((bytes.size() + 15) / 16 * 16);
  to.codes = DeviceBuffer(bytes.size());
  to_device(stream, to.codes.data(), bytes.data(), bytes.size());
  wait_for(stream);
  const std::byte* at = to.codes.as<std::byte>();
  w.codes = reinterpret_cast<const uint8_t*>(at + codes);
  w.codebook = reinterpret_cast<const int8_t*>(at + book);
  w.row = reinterpret_cast<const float*>(at + row);
  w.column = reinterpret_cast<const uint16_t*>(at + columns);
  w.bias = to.bias.as<float>();
  if (s.sparse > 0) {
    w.begin = reinterpret_cast<const int32_t*>(at + begin);
    w.value = reinterpret_cast<const int8_t*>(at + value);
    w.tag = reinterpret_cast<const uint32_t*>(at + tag);
  }
  DeviceBuffer amax(sizeof(float));
  largest_value(stream, to.values, amax.as<float>());
  to.factor = factor_of(stream, amax);
}

}  // namespace

Linear pack(Stream stream, const LinearWeight& weight) {
  Linear to;
  to.out = weight.out;
  to.in = weight.in;
  to.spec = weight.spec;
  to.values.out = weight.out;
  to.values.in = weight.in;
  if (weight.bias) to.bias = uploaded(stream, weight.bias.view);
  const std::optional<LinearWeight> grid = weight.spec.kind == Kind::mxfp4 ? as_grid(weight) : std::nullopt;
  if (grid || has_kernel(weight.spec)) {
    pack_codes(stream, grid ? *grid : weight, to);
  } else if (weight.spec.kind == Kind::vq) {
    pack_vectors(stream, weight, to);
  } else if (const auto* dense = std::get_if<Dense>(&weight.main)) {
    pack_dense(stream, dense->w.view, to);
  } else {
    spdlog::info("no CUDA kernel for {}: a {} x {} weight is decoded to f32", to_string(weight.spec), weight.out,
                 weight.in);
    OwnedTensor decoded = OwnedTensor::allocate(DType::f32, {weight.out, weight.in});
    for (int64_t row = 0; row < weight.out; ++row)
      decode_row(weight, row,
                 decoded.as<float>().subspan(static_cast<size_t>(row * weight.in), static_cast<size_t>(weight.in)));
    pack_dense(stream, decoded.view, to);
  }
  wait_for(stream);
  return to;
}

}  // namespace fidelio::cuda
