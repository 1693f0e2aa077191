// This fuzzer reads JSON itself (a value that is read prints and reads back), config.json, and text on its way to a
// terminal.
#include <nlohmann/json.hpp>

#include "core/foreign/foreign_text.h"
#include "core/foreign/json.h"
#include "fuzz.h"
#include "io/hf_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fidelio;
  const std::string_view text = fuzzing::text_of(data, size);
  bool valid = false;
  fuzzing::try_to([&] {
    const nlohmann::json value = parse_json(text, "input");
    valid = true;
    const nlohmann::json copy = value;
    if (parse_json(copy.dump(), "copy") != value) __builtin_trap();
  });
  // Every reader refuses invalid text. Only one of them is tried, as refusing costs more than reading.
  const auto ask = [&](size_t which, auto&& read) {
    if (!valid && size % 3 != which) return;
    fuzzing::try_to([&] {
      read();
      if (!valid) __builtin_trap();
    });
  };
  ask(0, [&] { parse_unique_json(text, "input"); });
  ask(1, [&] { parse_ordered_json(text, "input"); });
  ask(2, [&] { parse_config(text, "config.json"); });
  const std::string shown = visible(text);
  if (visible(shown) != shown) __builtin_trap();
  for (char c : shown)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) __builtin_trap();
  if (foreign(text, Lines::escaped, 64).size() > 64 * 4 + 40) __builtin_trap();
  return 0;
}
