// JSON itself (what is read prints and reads back), config.json, and text on its way to a terminal.
#include <nlohmann/json.hpp>

#include "core/foreign/foreign_text.h"
#include "core/foreign/json.h"
#include "fuzz.h"
#include "io/hf_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fidelio;
  const std::string_view text = fuzzing::text_of(data, size);
  fuzzing::try_to([&] {
    const nlohmann::json value = parse_json(text, "input");
    const nlohmann::json copy = value;
    if (parse_json(copy.dump(), "copy") != value) __builtin_trap();
  });
  fuzzing::try_to([&] { parse_unique_json(text, "input"); });
  fuzzing::try_to([&] { parse_ordered_json(text, "input"); });
  fuzzing::try_to([&] { parse_config(text, "config.json"); });
  const std::string shown = visible(text);
  if (visible(shown) != shown) __builtin_trap();
  for (char c : shown)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) __builtin_trap();
  if (foreign(text, Lines::escaped, 64).size() > 64 * 4 + 40) __builtin_trap();
  return 0;
}
