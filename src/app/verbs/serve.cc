#include "app/verbs/serve.h"

#include "app/options/common.h"
#include "app/options/interrupt.h"
#include "app/options/served.h"
#include "serve/server.h"

namespace fidelio::app {
namespace {

struct Serve {
  ServedOptions served;
  std::string host = "127.0.0.1", socket, api_key;
  std::vector<std::string> origins;
  int port = 8000;
  int64_t max_requests = 256, connections = 256, body_megabytes = 4;
  int64_t drain_seconds = 30;
};

void serve_model(const Serve& o) {
  serve::ServerOptions options;
  options.http.connections = o.connections;
  options.http.body_bytes = static_cast<size_t>(o.body_megabytes) << 20;
  options.http.drain = std::chrono::seconds(o.drain_seconds);
  options.http.origins = o.origins;
  options.max_requests = o.max_requests;
  options.names = {o.served.run.model, folder_name(o.served.run.model)};
  options.api_key = o.api_key;
  serve::Server server(options, [&o] { return load_served(o.served); });
  std::string where;
  if (!o.socket.empty()) {
    server.http().listen_unix(o.socket);
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
  CLI::App* verb = app.add_subcommand("serve", "Answer OpenAI's and Anthropic's clients over HTTP");
  verb->footer(
      "Example:\n  fidelio serve models/quill-26m --port 8000\n"
      "  curl http://127.0.0.1:8000/v1/completions -d '{\"prompt\": \"The package\", \"max_tokens\": 32}'");
  add_model(*verb, o->served.run);
  verb->add_option("--host", o->host, "Address to listen on; 0.0.0.0 is every one of this machine");
  verb->add_option("--port", o->port, "Port to listen on; 0 = a free one")->check(CLI::Range(0, 65535));
  verb->add_option("--socket", o->socket, "Listen on this UNIX socket instead");
  verb->add_option("--name", o->served.name, "What the model is called; its folder's name unless said");
  verb->add_option("--api-key", o->api_key, "Answer those alone who send this key");
  verb->add_option(
      "--allow-origin", o->origins,
      "Let pages of this origin, as https://chat.example, ask from a browser (CORS); * = every page; may be "
      "repeated");
  verb->add_flag("--sanitize-control-tokens", o->served.sanitize_control_tokens,
                 "Control tokens that stand in messages are text: who writes <|im_end|> does not end his turn");
  verb->add_option("--max-sequences", o->served.max_sequences, "Answers computed side by side")
      ->check(CLI::Range(1, 128));
  verb->add_option("--cache-tokens", o->served.cache_tokens,
                   "Tokens the cache holds in all; 0 = 16384, on a GPU with room 2048 for each of --max-sequences, or "
                   "as many as "
                   "needed")
      ->check(from_to(0, kMostCacheTokens));
  verb->add_option("--max-requests", o->max_requests, "Answers under way or waiting, beyond which 503 is said")
      ->check(above_zero());
  verb->add_option("--max-connections", o->connections, "Connections, beyond which 503 is said")->check(above_zero());
  verb->add_option("--max-body", o->body_megabytes, "Largest request in MiB")->check(CLI::Range(1, 1024));
  verb->add_option("--drain", o->drain_seconds, "Seconds that answers under way have after SIGTERM")
      ->check(zero_or_more());
  add_draft(*verb, o->served.draft);
  add_run_options(*verb, o->served.run);
  verb->callback([o] { serve_model(*o); });
}

}  // namespace fidelio::app
