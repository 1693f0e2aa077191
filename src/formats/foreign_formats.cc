#include "formats/foreign_formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string>

#include "core/foreign/foreign_text.h"

namespace fidelio {
namespace {

// Removes a number from the beginning of `text` and returns it. Returns nothing where no number of one or two digits is
// there.
std::optional<int> take_number(std::string_view& text) {
  size_t digits = 0;
  while (digits < text.size() && digits < 3 && std::isdigit(static_cast<unsigned char>(text[digits]))) ++digits;
  if (digits == 0 || digits > 2) return {};
  int value = 0;
  for (size_t i = 0; i < digits; ++i) value = 10 * value + (text[i] - '0');
  text.remove_prefix(digits);
  return value;
}

bool take(std::string_view& text, std::string_view piece) {
  if (!text.starts_with(piece)) return false;
  text.remove_prefix(piece.size());
  return true;
}

// Recognises names of llama.cpp: q4_0, q4_k_m, iq3_xxs, tq2_0.
std::string of_llama(std::string_view name, std::string_view shown) {
  const bool grid = take(name, "iq");
  if (!grid && !take(name, "q")) return "";
  const std::optional<int> bits = take_number(name);
  if (!bits || *bits < 1 || *bits > 8 || (!name.empty() && name[0] != '_')) return "";
  const int ours = std::clamp(*bits, 2, 8);
  if (name.empty()) return fmt::format("{}-bit codes are, for example, int{}g64zs8 here", *bits, ours);
  if (grid)
    return fmt::format("llama.cpp's {} has codes of a non-uniform grid; the nearest here is lut{}g64", shown,
                       std::min(ours, 5));
  return fmt::format("llama.cpp's {} has {}-bit codes in groups of 16 or 32; the nearest here is int{}g32zs8", shown,
                     *bits, ours);
}

// Recognises names of vLLM and similar programs: w4a16, w8a8.
std::string of_widths(std::string_view name, std::string_view shown) {
  if (!take(name, "w")) return "";
  const std::optional<int> weights = take_number(name);
  if (!weights || !take(name, "a")) return "";
  const std::optional<int> activations = take_number(name);
  if (!activations || *weights < 2 || *weights > 8) return "";
  const std::string format = fmt::format("int{}g128", *weights);
  if (*activations >= 16)
    return fmt::format("{} is a weight of {} bits and 16-bit activations: {}, with --activations a16 (the default)",
                       shown, *weights, format);
  return fmt::format("{} is a weight of {} bits and {}-bit activations: {}, and --activations a{} where it runs", shown,
                     *weights, *activations, format, *activations);
}

// Recognises a width alone: "int4", "4bit", "4-bit", "u4".
std::string of_width(std::string_view name, std::string_view shown) {
  std::string_view rest = name;
  const bool named = take(rest, "int") || take(rest, "uint") || take(rest, "i") || take(rest, "u");
  const std::optional<int> bits = take_number(rest);
  const bool ends = rest.empty() || rest == "bit" || rest == "-bit" || rest == "bits" || rest == "b";
  if (!bits || *bits < 2 || *bits > 8 || !ends || (!named && rest.empty())) return "";
  return fmt::format(
      "{} does not say how many columns share a scale: int{}g128z (groups of 128, a zero point) is what GPTQ and AWQ "
      "commonly mean, int{}g64zs8 is better at the same size",
      shown, *bits, *bits);
}

struct Known {
  std::string_view name, meaning;
};
constexpr std::array kKnown = {
    Known{"nf4", "NF4 has a fixed grid of 16 values; lut4g64 has a grid of each matrix's own"},
    Known{"fp4", "the format of 4-bit floats is fp4g16"},
    Known{"nvfp4", "NVFP4 is E2M1 in blocks of 16 with an E4M3 scale: fp4g16"},
    Known{"e4m3", "E4M3 with one scale a row is fp8"},
    Known{"float8", "E4M3 with one scale a row is fp8"},
    Known{"fp8_e4m3", "E4M3 with one scale a row is fp8"},
    Known{"awq", "AWQ is a method, not a format; its files hold int4g128z, which GPTQ (--method gptq) fills here"},
    Known{"gptq",
          "GPTQ is a method (--method gptq, the default), not a format; int4g128z is what its files mostly hold"},
    Known{"bnb", "bitsandbytes' 4 bits are NF4; lut4g64 has a grid of each matrix's own"},
    Known{"bfloat16", "the name here is bf16"},
    Known{"float16", "the name here is f16"},
    Known{"fp16", "the name here is f16"},
    Known{"half", "the name here is f16"},
    Known{"float32", "the name here is f32"},
    Known{"fp32", "the name here is f32"},
};

// Recognises int4g100 and the like, where the width is right and the group is not.
std::string of_group(std::string_view name) {
  std::string_view rest = name;
  const bool grid = take(rest, "lut");
  if (!grid && !take(rest, "int")) return "";
  const std::optional<int> bits = take_number(rest);
  if (!bits) return "";
  const int most = grid ? 6 : 8;
  if (*bits < 2 || *bits > most) return fmt::format("there are {} of 2 to {} bits", grid ? "grids" : "integers", most);
  if (!take(rest, "g") && !take(rest, "_g") && !take(rest, "-g")) return "";
  return fmt::format("groups are of 16, 32, 64 or 128 columns, for example {}{}g{}", grid ? "lut" : "int", *bits,
                     grid ? 64 : 128);
}

}  // namespace

std::string nearest_format(std::string_view shown) {
  if (shown.size() > 24) return "";
  const std::string name = lower_case(shown);
  for (const Known& k : kKnown)
    if (name == k.name) return std::string(k.meaning);
  for (std::string found : {of_llama(name, shown), of_widths(name, shown), of_width(name, shown), of_group(name)})
    if (!found.empty()) return found;
  return "";
}

}  // namespace fidelio
