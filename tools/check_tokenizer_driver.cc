// The other half of check_tokenizer.py: reads one JSON request a line and writes one JSON answer a line.
//   {"load": FOLDER} or {"from_json": TEXT} | {"encode": TEXT, "special": BOOL} -> ids
//   {"decode": IDS, "skip": BOOL} -> [text, text streamed one id at a time]
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "text/tokenizer/tokenizer.h"

int main() {
  std::optional<fidelio::Tokenizer> tokenizer;
  for (std::string line; std::getline(std::cin, line);) {
    nlohmann::json request = nlohmann::json::parse(line), answer = "ok";
    if (request.contains("load")) {
      tokenizer = fidelio::Tokenizer::load(request["load"].get<std::string>());
    } else if (request.contains("from_json")) {
      tokenizer = fidelio::Tokenizer::from_json(request["from_json"].get<std::string>());
    } else if (request.contains("encode")) {
      answer = tokenizer->encode(request["encode"].get<std::string>(), request["special"].get<bool>());
    } else {
      auto ids = request["decode"].get<std::vector<int32_t>>();
      const bool skip = request["skip"].get<bool>();
      fidelio::StreamingDetokenizer detokenizer(*tokenizer, skip);
      std::string streamed;
      for (int32_t id : ids) streamed += detokenizer.push(id);
      streamed += detokenizer.finish();
      answer = {tokenizer->decode(ids, skip), streamed};
    }
    std::cout << answer.dump() << "\n";
  }
}
