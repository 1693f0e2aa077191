// This file is the verb `serve`, which serves a model over HTTP.
#include "app/verbs/serve.h"

#include <cstdlib>

#include "app/options/common.h"
#include "app/options/interrupt.h"
#include "app/options/served.h"
#include "core/file.h"
#include "core/foreign/foreign_text.h"
#include "serve/server.h"

namespace fidelio::app {
namespace {

CLI::Validator not_empty() {
  return CLI::Validator([](std::string& text) { return text.empty() ? "expected a text, found nothing" : ""; }, "");
}

struct Serve {
  ServedOptions served;
  std::string host = "127.0.0.1", socket, socket_mode = "0600", api_key, api_key_file;
  std::vector<std::string> origins, hosts;
  int port = 8000;
  int64_t max_requests = 256, connections = 256, body_megabytes = 4;
  int64_t drain_seconds = 30;
};

constexpr const char* kKeyVariable = "FIDELIO_API_KEY";

// An empty key, which a shell makes from a variable that is not set, would open the server to everyone.
std::string checked_key(const std::string& key, const std::string& from) {
  check(!key.empty(), "{}: expected a key, found nothing; to answer everybody, leave it out", from);
  for (const char c : key)
    check(c > ' ' && c < 0x7f, "{}: expected visible ASCII characters without blanks, as the key stands in a header",
          from);
  return key;
}

// Returns the key of the option, of the file, or of the environment, where other users of the machine do not see it.
// Returns "" if there is none.
std::string key_of(const Serve& o, bool option) {
  if (option) return checked_key(o.api_key, "--api-key");
  if (!o.api_key_file.empty()) {
    std::string key = read_text_file(o.api_key_file);
    while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
    return checked_key(key, "--api-key-file " + o.api_key_file);
  }
  const char* variable = std::getenv(kKeyVariable);
  return variable == nullptr ? "" : checked_key(variable, fmt::format("the environment's {}", kKeyVariable));
}

mode_t mode_of(const std::string& octal) {
  const bool digits = octal.size() <= 4 && octal.find_first_not_of("01234567") == std::string::npos;
  check(!octal.empty() && digits && std::stoi(octal, nullptr, 8) <= 0777,
        "--socket-mode {}: expected three octal digits such as 600 or 660", foreign(octal));
  return static_cast<mode_t>(std::stoi(octal, nullptr, 8));
}

void serve_model(const Serve& o, bool key_option) {
  serve::ServerOptions options;
  options.http.connections = o.connections;
  options.http.body_bytes = static_cast<size_t>(o.body_megabytes) << 20;
  options.http.drain = std::chrono::seconds(o.drain_seconds);
  options.http.access.origins = o.origins;
  for (const std::string& host : o.hosts) options.http.access.hosts.push_back(lower_case(host));
  options.max_requests = o.max_requests;
  options.names = {o.served.run.model, folder_name(o.served.run.model)};
  options.api_key = key_of(o, key_option);
  serve::Server server(options, [&o] { return load_served(o.served); });
  std::string where;
  if (!o.socket.empty()) {
    server.http().listen_unix(o.socket, mode_of(o.socket_mode));
    where = o.socket;
  } else {
    const int port = server.http().listen(o.host, o.port);
    where = fmt::format("http://{}:{}", o.host.find(':') == std::string::npos ? o.host : "[" + o.host + "]", port);
  }
  server.on_ready([&](const serve::ServedModel& model) {
    fmt::print("{} on {}, context {}; Ctrl-C ends it after the answers under way, a second one at once.\n", model.name,
               where, model.context);
    std::fflush(stdout);
  });
  const StopCatcher catcher([&] { server.http().stop(); });
  server.run();
}

}  // namespace

void add_serve(CLI::App& app) {
  auto o = std::make_shared<Serve>();
  CLI::App* verb = app.add_subcommand("serve", "Answer OpenAI's, Anthropic's and Ollama's clients over HTTP");
  verb->footer(
      "Example:\n  fidelio serve models/quill-26m --port 8000\n"
      "  curl http://127.0.0.1:8000/v1/completions --json '{\"prompt\": \"The package\", \"max_tokens\": 32}'");
  add_model(*verb, o->served.run);
  verb->add_option("--host", o->host, "Address to listen on; 0.0.0.0 is every one of this machine");
  verb->add_option("--port", o->port, "Port to listen on; 0 = a free one")->check(CLI::Range(0, 65535));
  CLI::Option* socket =
      verb->add_option("--socket", o->socket, "Listen on this UNIX socket instead")->check(not_empty());
  verb->add_option("--socket-mode", o->socket_mode,
                   "Who may connect to the socket, as chmod says it: 660 = its group too")
      ->needs(socket);
  verb->add_option("--name", o->served.name, "What the model is called; its folder's name unless said");
  CLI::Option* key = verb->add_option(
      "--api-key", o->api_key,
      "Answer those alone who send this key, which others of this machine may see in its list of processes; the "
      "environment's FIDELIO_API_KEY and --api-key-file keep it from them");
  verb->add_option("--api-key-file", o->api_key_file, "A file that holds the key")
      ->check(CLI::ExistingFile)
      ->excludes(key);
  verb->add_option(
          "--allowed-host", o->hosts,
          "A further name that requests without a key may call this server by, as chat.example; * = every name; may be "
          "repeated")
      ->check(not_empty());
  verb->add_option(
          "--allow-origin", o->origins,
          "Let pages of this origin, as https://chat.example, ask from a browser (CORS); * = every page; may be "
          "repeated")
      ->check(not_empty());
  add_served(*verb, o->served);
  verb->add_option("--max-requests", o->max_requests, "Answers under way or waiting, beyond which 503 is said")
      ->check(above_zero());
  verb->add_option("--max-connections", o->connections,
                   "Connections, beyond which an idle one is closed for a new one, or 503 is said")
      ->check(above_zero());
  verb->add_option("--max-body", o->body_megabytes, "Largest request in MiB")->check(CLI::Range(1, 1024));
  verb->add_option("--drain", o->drain_seconds, "Seconds that answers under way have after SIGTERM")
      ->check(zero_or_more());
  verb->callback([o, key] { serve_model(*o, key->count() > 0); });
}

}  // namespace fidelio::app
