// This fuzzer renders messages and tools (JSON) with a template that reads everything they may hold.
#include <nlohmann/json.hpp>

#include "core/foreign/json.h"
#include "fuzz.h"
#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fidelio;
  static const ChatTemplate chat(
      "{% for t in tools or [] %}{{ t|tojson(indent=2) }}{% endfor %}{% for m in messages %}{{ m.role|upper }}: {% if "
      "m.content is string %}"
      "{{ m.content|trim }}{% elif m.content is iterable %}{% for p in m.content %}{{ p.text or p['type'] }}{% endfor "
      "%}{% endif %}"
      "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments|tojson }}){% endfor %}\n"
      "{% for k, v in m|dictsort %}{{ k }}={{ v }}{{ loop.index }}{% endfor %}{% endfor %}");
  fuzzing::try_to([&] {
    const auto messages = parse_ordered_json(fuzzing::text_of(data, size), "messages");
    fuzzing::try_to([&] { chat.render_json(messages, nlohmann::ordered_json::object()); });
    fuzzing::try_to([&] { chat.render_json(nlohmann::ordered_json::array(), {{"tools", messages}}); });
  });
  return 0;
}
