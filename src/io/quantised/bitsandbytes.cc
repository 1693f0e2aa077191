#include "io/quantised/bitsandbytes.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/foreign/json.h"

namespace fidelio::quantised {
namespace {

using nlohmann::json;

struct FourBits {
  OwnedTensor codes;
  std::vector<float> levels, scales;
  int64_t block = 64;
};

int64_t number_of(const json& state, const char* key, const std::string& name) {
  const json value = state.value(key, json());
  check(value.is_number_integer() && value > 0 && value <= (int64_t{1} << 30), "{}: \"{}\" is {}, expected a size",
        name, key, value.dump());
  return value.get<int64_t>();
}

// The numbers must be `count` in FP32.
std::vector<float> numbers_of(const TensorFiles& files, const std::string& name, int64_t count) {
  files.get(name, DType::f32, {count});
  return finite_numbers(files, name);
}

// Returns the scale of each block.
std::vector<float> scales_of(const TensorFiles& files, const std::string& weight, const json& state,
                             const std::string& state_name, int64_t blocks) {
  if (!files.contains(weight + ".nested_absmax")) return numbers_of(files, weight + ".absmax", blocks);
  const int64_t nested = number_of(state, "nested_blocksize", state_name);
  const json offset = state.value("nested_offset", json());
  check(offset.is_number(), "{}: \"nested_offset\" is {}, expected a number", state_name, offset.dump());
  const OwnedTensor codes = files.get(weight + ".absmax", DType::u8, {blocks});
  const std::vector<float> levels = numbers_of(files, weight + ".nested_quant_map", 256),
                           wholes = numbers_of(files, weight + ".nested_absmax", (blocks + nested - 1) / nested);
  std::vector<float> scales(static_cast<size_t>(blocks));
  for (size_t i = 0; i < scales.size(); ++i)
    scales[i] = levels[codes.as<const uint8_t>()[i]] * wholes[i / static_cast<size_t>(nested)] + offset.get<float>();
  return scales;
}

FourBits open(const TensorFiles& files, const Place& p) {
  const std::string weight = p.module + ".weight",
                    state_name = p.module + (files.contains(p.module + kNf4State) ? kNf4State : kFp4State);
  const OwnedTensor text = files.get(state_name);
  check(text.view.dtype == DType::u8, "{} is {}, expected U8", state_name, name_of(text.view.dtype));
  const json state =
      parse_json({reinterpret_cast<const char*>(text.view.data), static_cast<size_t>(text.view.bytes())}, state_name);
  check(state.is_object() && state.value("shape", json()) == json{p.module_rows, p.in},
        "{}: expected the shape [{}, {}], got {}", state_name, p.module_rows, p.in,
        state.is_object() ? state.value("shape", json()).dump() : "no object");
  const int64_t codes = p.module_rows * p.in;
  FourBits w{.codes = files.get(weight, DType::u8, {(codes + 1) / 2, 1}),
             .levels = numbers_of(files, weight + ".quant_map", 16),
             .scales = {},
             .block = number_of(state, "blocksize", state_name)};
  w.scales = scales_of(files, weight, state, state_name, (codes + w.block - 1) / w.block);
  return w;
}

LinearWeight read_four_bits(const FourBits& w, const Place& place) {
  OwnedTensor values = OwnedTensor::allocate(DType::f32, {place.out, place.in});
  const auto* bytes = reinterpret_cast<const uint8_t*>(w.codes.view.data);
  const int64_t first = place.first_row * place.in;
  for (int64_t i = 0; i < place.out * place.in; ++i) {
    const int64_t at = first + i;
    const int code = at % 2 == 0 ? bytes[at / 2] >> 4 : bytes[at / 2] & 15;
    values.as<float>()[static_cast<size_t>(i)] =
        w.levels[static_cast<size_t>(code)] * w.scales[static_cast<size_t>(at / w.block)];
  }
  return make_dense(std::move(values));
}

}  // namespace

ForeignLinear open_bitsandbytes(const TensorFiles& files, const Place& place, std::string* why) {
  *why = "bitsandbytes' blocks of 4-bit codes have no format here";
  const FourBits w = open(files, place);
  return {{.kind = Kind::f32, .bits = 32}, [w, place] { return read_four_bits(w, place); }};
}

}  // namespace fidelio::quantised
