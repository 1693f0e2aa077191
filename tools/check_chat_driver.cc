// The other half of check_chat.py: reads one JSON request a line and writes one JSON answer a line.
//   {"template": TEXT, "tokens": {NAME: TEXT}} | {"messages": LIST, "extra": OBJECT} -> the rendered text, or null
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "text/chat_template.h"

int main() {
  using Json = nlohmann::ordered_json;
  std::optional<fidelio::ChatTemplate> chat;
  for (std::string line; std::getline(std::cin, line);) {
    const Json request = Json::parse(line);
    Json answer = nullptr;
    try {
      if (request.contains("template")) {
        std::vector<std::pair<std::string, std::string>> tokens;
        for (const auto& [name, text] : request["tokens"].items()) tokens.emplace_back(name, text.get<std::string>());
        chat.emplace(request["template"].get<std::string>(), std::move(tokens));
        chat->set_clock([] {
          std::tm now{};
          strptime("2024-07-06 05:04:03", "%Y-%m-%d %H:%M:%S", &now);
          return now;
        });
        answer = "";
      } else {
        answer = chat->render_json(request["messages"], request["extra"]);
      }
    } catch (const fidelio::Error&) {
    }
    std::cout << answer.dump() << "\n";
  }
}
