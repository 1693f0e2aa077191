// This fuzzer renders the usual messages with an arbitrary chat template.
#include <nlohmann/json.hpp>

#include "fuzz.h"
#include "text/chat_template.h"
#include "text/jinja/value.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fidelio;
  using jinja::Value;
  static const auto text = [](const char* s) { return Value::text(s); };
  static const auto message = [](const char* role, const char* content) {
    return Value::dict({{text("role"), text(role)}, {text("content"), text(content)}});
  };
  static const jinja::Variables variables = {
      {"messages", Value::list({message("system", "Be kind."), message("user", " a b\xff\n"),
                                message("assistant", "<think>x</think>y")})},
      {"tools", Value::none()},
      {"add_generation_prompt", Value::boolean(true)},
      {"bos_token", text("<s>")},
      {"eos_token", text("</s>")}};
  fuzzing::try_to([&] {
    jinja::Template(fuzzing::text_of(data, size)).render(variables, [] { return std::tm{}; }, {200'000, 1 << 20});
  });
  return 0;
}
