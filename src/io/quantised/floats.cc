#include "io/quantised/floats.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "formats/small_float.h"

namespace fidelio::quantised {
namespace {

bool has_type(const TensorFiles& files, const std::string& name, DType dtype) {
  return files.contains(name) && files.get(name).view.dtype == dtype;
}

// Returns the name of the tensor with two codes a byte, or "".
std::string packed_name(const TensorFiles& files, const std::string& module) {
  for (const char* suffix : {".weight_packed", ".weight"})
    if (has_type(files, module + suffix, DType::u8)) return module + suffix;
  return "";
}

float only_number(const TensorFiles& files, const std::string& name) {
  const std::vector<float> values = finite_numbers(files, name);
  check(values.size() == 1, "{} has {} numbers, expected one", name, values.size());
  return values[0];
}

// Returns the bytes of some rows of a matrix of bytes.
std::span<const uint8_t> rows_of_bytes(const OwnedTensor& t, const Place& place) {
  const int64_t row = t.view.shape[1];
  return {reinterpret_cast<const uint8_t*>(t.view.data) + place.first_row * row, static_cast<size_t>(place.out * row)};
}

bool is_nan_e4m3(uint8_t x) { return (x & 0x7f) == 0x7f; }

void check_codes(std::span<const uint8_t> codes, const std::string& name) {
  check(std::ranges::none_of(codes, is_nan_e4m3), "{} holds NaN, which no quantiser writes: the file is damaged", name);
}

// These are the scales of FP8: s of (row, column) is scales[row / rows, column / columns].
struct Fp8 {
  OwnedTensor codes;
  std::string name;
  std::vector<float> scales;
  int64_t rows = 1, columns = 1, across = 1;  // `across` counts the scales of a row.

  float scale(int64_t row, int64_t column) const {
    return scales[static_cast<size_t>(row / rows * across + column / columns)];
  }
};

// Finds out from the scales' shape what each of them is for.
Fp8 open_fp8(const TensorFiles& files, const Place& p, const std::pair<int64_t, int64_t>& blocks) {
  Fp8 fp8{.codes = files.get(p.module + ".weight", DType::f8_e4m3, {p.module_rows, p.in}),
          .name = p.module + ".weight",
          .scales = {}};
  const bool inverse = files.contains(p.module + ".weight_scale_inv");
  const std::string name = p.module + (inverse ? ".weight_scale_inv" : ".weight_scale");
  const Shape shape = files.get(name).view.shape;
  fp8.scales = finite_numbers(files, name);
  fp8.columns = p.in;
  if (fp8.scales.size() == 1) {
    fp8.rows = p.module_rows;
    return fp8;
  }
  const int64_t down = shape.rank >= 1 ? shape[0] : 1;
  fp8.across = shape.rank == 2 ? shape[1] : 1;
  if (down != p.module_rows) fp8.rows = blocks.first;
  if (fp8.across != 1) fp8.columns = blocks.second;
  const auto parts = [](int64_t whole, int64_t part) { return (whole + part - 1) / part; };
  check(shape.rank <= 2 && down == parts(p.module_rows, fp8.rows) && fp8.across == parts(p.in, fp8.columns),
        "{} is {}, expected one scale, one for each of {} rows, or one for each block of {} x {} of {} x {}", name,
        to_string(shape), p.module_rows, blocks.first, blocks.second, p.module_rows, p.in);
  return fp8;
}

LinearWeight read_fp8(const Fp8& fp8, const Place& place) {
  const std::span<const uint8_t> codes = rows_of_bytes(fp8.codes, place);
  check_codes(codes, fp8.name);
  if (fp8.across > 1) {
    OwnedTensor values = OwnedTensor::allocate(DType::f32, {place.out, place.in});
    for (int64_t row = 0; row < place.out; ++row)
      for (int64_t c = 0; c < place.in; ++c) {
        const auto at = static_cast<size_t>(row * place.in + c);
        values.as<float>()[at] = fp8.scale(place.first_row + row, c) * e4m3_to_float(codes[at]);
      }
    return make_dense(std::move(values));
  }
  LinearWeight w = allocate_weight({.kind = Kind::fp8, .bits = 8}, place.out, place.in);
  auto& block = std::get<FpBlock>(w.main);
  for (int64_t row = 0; row < place.out; ++row) {
    block.codes.set_row(row, codes.subspan(static_cast<size_t>(row * place.in), static_cast<size_t>(place.in)));
    block.row_scale.as<float>()[static_cast<size_t>(row)] = fp8.scale(place.first_row + row, 0);
  }
  return w;
}

// These are the tensors of E2M1 codes; `global` is 1 for MXFP4.
struct Fp4 {
  FormatSpec format;
  OwnedTensor codes, scales;
  std::string scales_name;
  float global = 1;
};

Fp4 open_fp4(const TensorFiles& files, const Place& p) {
  const std::string& m = p.module;
  const bool nv = has_type(files, m + ".weight_scale", DType::f8_e4m3);
  const int64_t group = nv ? 16 : 32;
  check(p.in % group == 0, "{} has {} columns, and {} has blocks of {}", m, p.in, nv ? "NVFP4" : "MXFP4", group);
  Fp4 fp4{.format = {.kind = nv ? Kind::fp4 : Kind::mxfp4, .bits = 4, .group = static_cast<int>(group)},
          .codes = files.get(packed_name(files, m), DType::u8, {p.module_rows, p.in / 2}),
          .scales = files.get(m + ".weight_scale", nv ? DType::f8_e4m3 : DType::u8, {p.module_rows, p.in / group}),
          .scales_name = m + ".weight_scale"};
  if (!nv) return fp4;
  const bool inverse = files.contains(m + ".weight_global_scale");
  fp4.global = only_number(files, m + (inverse ? ".weight_global_scale" : ".weight_scale_2"));
  if (inverse) fp4.global = 1 / fp4.global;
  check(std::isfinite(fp4.global), "{}.weight_global_scale is 0, expected a number that can be divided by", m);
  return fp4;
}

LinearWeight read_fp4(const Fp4& fp4, const Place& place) {
  LinearWeight w = allocate_weight(fp4.format, place.out, place.in);
  auto& block = std::get<FpBlock>(w.main);
  const std::span<const uint8_t> codes = rows_of_bytes(fp4.codes, place), scales = rows_of_bytes(fp4.scales, place);
  std::memcpy(block.codes.planes[0].view.data, codes.data(), codes.size());
  std::memcpy(block.scale.view.data, scales.data(), scales.size());
  if (fp4.format.kind == Kind::mxfp4) {
    check(std::ranges::find(scales, 255) == scales.end(), "{} holds NaN: the file is damaged", fp4.scales_name);
    return w;
  }
  check_codes(scales, fp4.scales_name);
  std::ranges::fill(block.row_scale.as<float>(), fp4.global);
  return w;
}

}  // namespace

bool holds_floats(const TensorFiles& files, const std::string& module) {
  return has_type(files, module + ".weight", DType::f8_e4m3) || !packed_name(files, module).empty();
}

ForeignLinear open_floats(const TensorFiles& files, const Place& place, const std::pair<int64_t, int64_t>& blocks,
                          std::string* why) {
  check(
      !files.contains(place.module + ".pre_quant_scale"),
      "{} has a scale for its inputs (pre_quant_scale, AWQ by ModelOpt), which is not computed here; give the original "
      "checkpoint, or one of NVFP4 or FP8 without AWQ",
      place.module);
  if (!packed_name(files, place.module).empty()) {
    const Fp4 fp4 = open_fp4(files, place);
    return {fp4.format, [fp4, place] { return read_fp4(fp4, place); }};
  }
  const Fp8 fp8 = open_fp8(files, place, blocks);
  if (fp8.across > 1) *why = "FP8 with several scales a row has no format here";
  const FormatSpec format =
      fp8.across > 1 ? FormatSpec{.kind = Kind::f32, .bits = 32} : FormatSpec{.kind = Kind::fp8, .bits = 8};
  return {format, [fp8, place] { return read_fp8(fp8, place); }};
}

}  // namespace fidelio::quantised
