// This fuzzer reads tokenizer.json, then encodes and decodes a text with it. The text follows the first zero byte.
#include "fuzz.h"
#include "text/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fidelio;
  const std::string_view input = fuzzing::text_of(data, size);
  const size_t end = std::min(input.find('\0'), size);
  fuzzing::try_to([&] {
    const Tokenizer tokenizer = Tokenizer::from_json(input.substr(0, end));
    fuzzing::try_to([&] {
      const std::vector<int32_t> ids =
          tokenizer.encode(end < size ? input.substr(end + 1) : "Kira has 5  books.\n\xC3\xA9");
      const std::string whole = tokenizer.decode(ids);
      StreamingDetokenizer streaming(tokenizer);
      std::string pieces;
      for (int32_t id : ids) pieces += streaming.push(id);
      if (pieces + streaming.finish() != whole) __builtin_trap();
    });
  });
  return 0;
}
