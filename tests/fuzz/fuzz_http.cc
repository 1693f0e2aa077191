// This fuzzer sends a server what a stranger may send: bytes on a connection, bodies of every route, forms of answers,
// and answers that are taken apart. The first byte selects the kind.
#include "core/foreign/json.h"
#include "fuzz.h"
#include "grammar/json_schema.h"
#include "serve/forms/openai_request.h"
#include "serve/http/wire.h"
#include "serve/parts/answer_parts.h"
#include "text/tokenizer/token_bytes.h"

namespace fidelio::serve {
namespace {

// The vocabulary has bytes and a few words, as ByteLevel spells them.
std::string tokenizer_json() {
  nlohmann::json vocabulary = nlohmann::json::object();
  for (int c = 33; c < 127; ++c) vocabulary[std::string(1, static_cast<char>(c))] = vocabulary.size();
  for (const char* more : {"\u0120", "\u010a", "true", "{\"", "\":"}) vocabulary[more] = vocabulary.size();
  return nlohmann::json{
      {"version", "1.0"},
      {"added_tokens", nlohmann::json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}}}
      .dump();
}

const ServedModel& model() {
  static const ServedModel served = [] {
    ServedModel m{"model", Tokenizer::from_json(tokenizer_json()),
                  ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tools }}")};
    m.vocabulary = m.tokenizer.vocab_size();
    m.context = 4096;
    m.tokens = std::make_shared<grammar::TokenTree>(bytes_of_tokens(m.tokenizer));
    m.formats = std::make_shared<AnswerFormats>(m.tokens);
    return m;
  }();
  return served;
}

// This server repeats the body, at once or as a stream.
HttpServer& echo() {
  static HttpServer server(
      [] {
        HttpLimits limits;
        limits.header_bytes = 1024;
        limits.body_bytes = 2048;
        return limits;
      }(),
      [](HttpRequest request, const std::shared_ptr<Exchange>& exchange) {
        if (request.path == "/later") return;
        if (request.path != "/stream") return exchange->respond({200, request.body});
        exchange->begin_stream(kEvents, kComment);
        exchange->send(request.body);
        exchange->end();
      });
  return server;
}

// Returns the answer to a client that sends these bytes in so many pieces and then closes.
std::string ask(std::string_view bytes, size_t pieces) {
  MemoryClient client{bytes, std::max<size_t>(1, bytes.size() / pieces)};
  echo().converse(client);
  return client.hears;
}

void check_answer(const std::string& answer) {
  if (answer.empty()) return;  // The client left before it asked.
  if (!answer.starts_with("HTTP/1.1 ")) __builtin_trap();
  const std::string status = answer.substr(9, 3);
  for (const char* known : {"200", "100", "400", "403", "413", "415", "431"})
    if (status == known) return;
  __builtin_trap();
}

// A first byte b whose remainder b % 8 is 1 to 3 selects the route at b % 8 - 1 + b / 64.
constexpr Route kRoutes[] = {Route::completions, Route::chat,        Route::messages,
                             Route::responses,   Route::ollama_chat, Route::ollama_generate};

// An answer in pieces must be taken apart like the answer in one piece.
void take_apart(std::string_view text, bool thinking, size_t piece) {
  PartsRules rules{{{thinking_marks().begin(), thinking_marks().end()}}, std::make_shared<const Tools>()};
  if (thinking) rules.thinking.opened = thinking_marks().front();
  AnswerParts whole(rules), pieces(rules);
  std::vector<Part> expected, parts;
  const auto add = [](std::vector<Part>& to, std::vector<Part> more) {
    for (Part& part : more) {
      part.id.clear();
      append(to, std::move(part));
    }
  };
  add(expected, whole.push(std::string(text)));
  add(expected, whole.finish());
  for (size_t at = 0; at < text.size(); at += piece) add(parts, pieces.push(std::string(text.substr(at, piece))));
  add(parts, pieces.finish());
  if (parts.size() != expected.size()) __builtin_trap();
  for (size_t i = 0; i < parts.size(); ++i)
    if (parts[i].kind != expected[i].kind || parts[i].text != expected[i].text || parts[i].name != expected[i].name)
      __builtin_trap();
}

// An accepted form allows some token, or is over.
void impose(grammar::Grammar grammar) {
  grammar::TokenConstraint constraint(std::move(grammar), model().tokens);
  auto state = constraint.start();
  for (int i = 0; i < 4 && state >= 0 && !constraint.must_end(state); ++i) {
    const auto mask = constraint.allowed(state);
    int32_t id = -1;
    for (size_t w = 0; w < mask.size() && id < 0; ++w)
      if (mask[w] != 0) id = static_cast<int32_t>(w * 64) + __builtin_ctzll(mask[w]);
    if (id < 0) return;
    state = constraint.next(state, id);
    if (state == Constraint::kForbidden) __builtin_trap();
  }
}

// Reduces numbers to one digit, as repeating something a thousand times takes too long for nearly every input.
std::string with_small_counts(std::string_view pattern) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  std::string out;
  for (const char c : pattern)
    if (out.empty() || !digit(c) || !digit(out.back())) out += c;
  return out;
}

}  // namespace
}  // namespace fidelio::serve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fidelio;
  using namespace fidelio::serve;
  if (size == 0) return 0;
  const std::string_view text = fuzzing::text_of(data + 1, size - 1);
  switch (data[0] % 8) {
    case 0:
    case 7:
      check_answer(ask(text, 1 + data[0] / 8));
      break;
    case 1:
    case 2:
    case 3:
      fuzzing::try_to([&] { read_call(kRoutes[data[0] % 8 - 1 + data[0] / 64], text, model(), {"model"}); });
      break;
    case 4:
      take_apart(text, data[0] / 8 % 2 != 0, 1 + data[0] / 16);
      break;
    case 5:
      fuzzing::try_to(
          [&] { impose(grammar::regex_grammar(size % 8 == 0 ? std::string(text) : with_small_counts(text))); });
      break;
    default:
      fuzzing::try_to([&] { impose(grammar::schema_grammar(parse_ordered_json(text, "input"))); });
  }
  return 0;
}
