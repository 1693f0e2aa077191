// What a stranger sends to a server: bytes on a connection, bodies of every route, forms of answers, and answers that
// are taken apart. The first byte says which.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <thread>

#include "core/foreign/json.h"
#include "fuzz.h"
#include "grammar/json_schema.h"
#include "serve/forms/answer_parts.h"
#include "serve/forms/openai_request.h"
#include "text/tokenizer/token_bytes.h"

namespace fidelio::serve {
namespace {

// Bytes and a few words, as ByteLevel spells them.
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

// A server of its own thread on a UNIX socket, that repeats the body.
class Echo {
 public:
  Echo()
      : path_("/tmp/fidelio-fuzz-" + std::to_string(::getpid())), server_(limits(), [](HttpRequest r, auto exchange) {
          if (r.path != "/stream") return exchange->respond({200, r.body});
          exchange->begin_events();
          exchange->send(r.body);
          exchange->end();
        }) {
    server_.listen_unix(path_);
    thread_ = std::thread([this] { server_.run(); });
  }
  ~Echo() {
    server_.stop();
    thread_.join();
  }
  // What is answered when the client has said all it will.
  std::string ask(std::string_view bytes) const {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) __builtin_trap();
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n = ::send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) break;  // it has refused already
      sent += static_cast<size_t>(n);
    }
    ::shutdown(fd, SHUT_WR);
    std::string answer;
    char buffer[4096];
    for (ssize_t n; (n = ::recv(fd, buffer, sizeof buffer, 0)) > 0;) answer.append(buffer, static_cast<size_t>(n));
    ::close(fd);
    return answer;
  }

 private:
  static HttpLimits limits() {
    HttpLimits l;
    l.header_bytes = 4096;
    l.body_bytes = 1 << 16;
    return l;
  }
  std::string path_;
  HttpServer server_;
  std::thread thread_;
};

void check_answer(const std::string& answer) {
  if (answer.empty()) return;  // the client left before it asked
  if (!answer.starts_with("HTTP/1.1 ")) __builtin_trap();
  const std::string status = answer.substr(9, 3);
  for (const char* known : {"200", "100", "400", "413", "431"})
    if (status == known) return;
  __builtin_trap();
}

// An answer in pieces is the answer in one.
void take_apart(std::string_view text) {
  for (const bool thinking : {false, true}) {
    AnswerParts whole(thinking, true), pieces(thinking, true);
    std::vector<Part> expected, parts;
    const auto add = [](std::vector<Part>& to, std::vector<Part> more) {
      for (Part& part : more) {
        part.id.clear();
        append(to, std::move(part));
      }
    };
    add(expected, whole.push(std::string(text)));
    add(expected, whole.finish());
    for (size_t at = 0; at < text.size(); at += 3) add(parts, pieces.push(std::string(text.substr(at, 3))));
    add(parts, pieces.finish());
    if (parts.size() != expected.size()) __builtin_trap();
    for (size_t i = 0; i < parts.size(); ++i)
      if (parts[i].kind != expected[i].kind || parts[i].text != expected[i].text || parts[i].name != expected[i].name)
        __builtin_trap();
  }
}

// A form that was taken allows something, or is over.
void impose(grammar::Grammar grammar) {
  grammar::TokenConstraint constraint(std::move(grammar), model().tokens);
  auto state = constraint.start();
  for (int i = 0; i < 8 && state >= 0 && !constraint.must_end(state); ++i) {
    const auto mask = constraint.allowed(state);
    int32_t id = -1;
    for (size_t w = 0; w < mask.size() && id < 0; ++w)
      if (mask[w] != 0) id = static_cast<int32_t>(w * 64) + __builtin_ctzll(mask[w]);
    if (id < 0) return;
    state = constraint.next(state, id);
    if (state == Constraint::kForbidden) __builtin_trap();
  }
}

}  // namespace
}  // namespace fidelio::serve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fidelio;
  using namespace fidelio::serve;
  if (size == 0) return 0;
  const std::string_view text = fuzzing::text_of(data + 1, size - 1);
  static Echo echo;
  switch (data[0] % 8) {
    case 0:
      check_answer(echo.ask(text));
      break;
    case 1:
    case 2:
    case 3:
      fuzzing::try_to([&] { read_call(static_cast<Route>(data[0] % 8 - 1), text, model(), {"model"}); });
      break;
    case 4:
      take_apart(text);
      break;
    case 5:
      fuzzing::try_to([&] { impose(grammar::regex_grammar(text)); });
      break;
    default:
      fuzzing::try_to([&] { impose(grammar::schema_grammar(parse_ordered_json(text, "input"))); });
  }
  return 0;
}
