// This program is the part of tools/check_json_schema.py that uses the grammar. It reads one request a line,
// {"schema", "texts", "draws"}, and writes one answer a line. The answer is {"error"} if the schema is refused.
// Otherwise it tells which of the texts the schema's form accepts, and has as many texts of the form as `draws` says,
// drawn at random; null stands for one that could not be ended.
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/foreign/json.h"
#include "grammar/json_schema.h"
#include "grammar/test_reading.h"

int main() {
  using Json = nlohmann::ordered_json;
  for (std::string line; std::getline(std::cin, line);) {
    Json answer;
    try {
      const Json request = fidelio::parse_ordered_json(line, "the request");
      const auto begin = std::chrono::steady_clock::now();
      fidelio::grammar::Grammar grammar = fidelio::grammar::schema_grammar(request["schema"]);
      answer["states"] = grammar.size();
      fidelio::grammar::Automaton machine(std::move(grammar));
      answer["ms"] = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
      answer["reads"] = answer["drawn"] = Json::array();
      for (const Json& text : request["texts"])
        answer["reads"].push_back(fidelio::grammar::reads(machine, text.get<std::string>()));
      std::mt19937 random(1);
      for (int i = 0; i < request["draws"]; ++i) {
        const auto text = fidelio::grammar::drawn_text(machine, random);
        answer["drawn"].push_back(text ? Json(*text) : Json(nullptr));
      }
    } catch (const fidelio::Error& e) {
      answer = {{"error", e.what()}};
    }
    std::cout << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
}
