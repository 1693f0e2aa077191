// This file is the verb `bench serve`, which sends requests to a server and measures their times.
#include "app/bench/bench_serve.h"

#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>

#include "app/about.h"
#include "app/bench/http_client.h"
#include "app/options/common.h"
#include "app/options/served.h"
#include "core/file.h"
#include "core/foreign/json.h"
#include "core/foreign/lines.h"
#include "core/rng.h"
#include "eval/report/html.h"
#include "eval/report/table.h"
#include "eval/statistics/statistics.h"
#include "serve/server.h"

namespace fidelio::app {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

struct ServeBench {
  ServedOptions served;
  std::string target, key, lengths, json, page, model;
  std::vector<int64_t> clients = {1, 4, 16};
  std::vector<double> rates;
  int64_t requests = 64, prompt_words = 96, output_tokens = 64;
  uint64_t seed = 0;
  double ttft_goal = 1, gap_goal = 0.1;
};

struct Length {
  int64_t prompt_words, output_tokens;
};

// This is one answered request.
struct Answered {
  double first = 0, whole = 0;  // These are seconds from the time when the request was due.
  std::vector<double> gaps;     // These are seconds between one event with text and the next.
  int64_t prompt_tokens = 0, tokens = 0;
  bool good = false;  // It is true if the request was answered.
};

// Reads lines {"prompt": words, "output": tokens}, which are used in turn.
std::vector<Length> read_lengths(const ServeBench& o) {
  if (o.lengths.empty()) return {{o.prompt_words, o.output_tokens}};
  std::vector<Length> all;
  for_each_line(read_text_file(o.lengths), [&](std::string_view line, int64_t number) {
    const json one = parse_json(line, o.lengths);
    check(one.is_object() && one.contains("prompt") && one.contains("output") && one["prompt"].is_number_integer() &&
              one["output"].is_number_integer() && one["prompt"] >= 1 && one["output"] >= 1,
          "{} line {}: expected {{\"prompt\": words, \"output\": tokens}}", o.lengths, number);
    all.push_back({one["prompt"].get<int64_t>(), one["output"].get<int64_t>()});
  });
  check(!all.empty(), "{} has no lengths", o.lengths);
  return all;
}

// No two prompts begin alike, so nothing is reused between them.
std::string prompt_of(uint64_t seed, int64_t number, int64_t words) {
  static const char* const all[] = {"the",   "package", "reads", "a",    "file",  "and",   "prints", "what", "it",
                                    "finds", "when",    "there", "is",   "more",  "than",  "one",    "of",   "them",
                                    "users", "may",     "set",   "this", "value", "under", "which",  "name"};
  Rng rng(seed, static_cast<uint64_t>(number));
  std::string text = std::to_string(number * 7919 + 13);
  for (int64_t i = 1; i < words; ++i) text += std::string(" ") + all[rng.below(std::size(all))];
  return text;
}

Answered measure(HttpClient& client, const ServeBench& o, int64_t number, Length length, Clock::time_point due) {
  const json body = {{"model", o.model},
                     {"prompt", prompt_of(o.seed, number, length.prompt_words)},
                     {"max_tokens", length.output_tokens},
                     {"temperature", 0},
                     {"ignore_eos", true},
                     {"stream", true},
                     {"stream_options", {{"include_usage", true}}}};
  Answered m;
  Clock::time_point newest = due;
  int64_t events = 0;
  std::string answer;
  const int status = client.ask("POST", "/v1/completions", o.key, body.dump(), answer, [&](std::string_view data) {
    if (data == "[DONE]") return;
    const json event = json::parse(data, nullptr, false);
    if (!event.is_object()) return;
    if (event.contains("usage") && event["usage"].is_object()) {
      m.tokens = event["usage"].value("completion_tokens", int64_t{0});
      m.prompt_tokens = event["usage"].value("prompt_tokens", int64_t{0});
    }
    const json choices = event.value("choices", json::array());
    if (choices.empty() || choices[0].value("text", "").empty()) return;
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - newest).count();
    events++ == 0 ? (void)(m.first = seconds) : m.gaps.push_back(seconds);
    newest = now;
  });
  m.whole = std::chrono::duration<double>(Clock::now() - due).count();
  m.good = status == 200 && events > 0;
  if (m.tokens == 0) m.tokens = events;  // This is for servers that report no usage.
  return m;
}

struct Load {
  int64_t clients = 0;  // In a closed loop, each client asks again when it is answered.
  double rate = 0;  // Otherwise arrivals are a Poisson process of so many requests a second, however many still wait.
};

std::vector<Answered> run_load(const ServeBench& o, const Load& load, const std::vector<Length>& lengths,
                               double& seconds) {
  const ServerAddress address = parse_address(o.target);
  std::vector<Answered> all(static_cast<size_t>(o.requests));
  std::vector<double> due(all.size());  // This is in seconds from the start.
  Rng rng(o.seed, 1);
  double at = 0;
  for (double& d : due) d = at += load.rate > 0 ? -std::log1p(-rng.uniform()) / load.rate : 0;
  const int64_t threads = load.rate > 0 ? std::min<int64_t>(o.requests, 256) : load.clients;
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::string failure;
  const auto start = Clock::now();
  std::vector<std::thread> workers;
  for (int64_t t = 0; t < threads; ++t)
    workers.emplace_back([&] {
      HttpClient client(address);
      for (int64_t i; (i = next++) < o.requests;) {
        auto from = Clock::now();
        if (load.rate > 0) {
          from = start + std::chrono::duration_cast<Clock::duration>(
                             std::chrono::duration<double>(due[static_cast<size_t>(i)]));
          std::this_thread::sleep_until(from);
        }
        try {
          all[static_cast<size_t>(i)] = measure(client, o, i, lengths[static_cast<size_t>(i) % lengths.size()], from);
        } catch (const std::exception& e) {
          const std::lock_guard lock(mutex);
          failure = e.what();
        }
      }
    });
  for (std::thread& worker : workers) worker.join();
  seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const bool any = std::any_of(all.begin(), all.end(), [](const Answered& m) { return m.good; });
  check(any, "no request was answered{}{}", failure.empty() ? "" : ": ", failure);
  return all;
}

json summary_of(const ServeBench& o, const Load& load, const std::vector<Answered>& all, double seconds) {
  std::vector<double> first, gaps, whole;
  int64_t tokens = 0, prompt_tokens = 0, good = 0, within = 0;
  for (const Answered& m : all) {
    if (!m.good) continue;
    ++good;
    first.push_back(m.first), whole.push_back(m.whole);
    gaps.insert(gaps.end(), m.gaps.begin(), m.gaps.end());
    tokens += m.tokens, prompt_tokens += m.prompt_tokens;
    within += m.first <= o.ttft_goal && (m.gaps.empty() || mean(m.gaps) <= o.gap_goal);
  }
  const auto percentiles = [](std::vector<double>& values) {
    return values.empty()
               ? json(nullptr)
               : json{
                     {"p50", percentile(values, 50)}, {"p90", percentile(values, 90)}, {"p99", percentile(values, 99)}};
  };
  json row = {{"requests", all.size()},
              {"failed", std::ssize(all) - good},
              {"seconds", seconds},
              {"tokens_per_second", static_cast<double>(tokens) / seconds},
              {"prompt_tokens_per_second", static_cast<double>(prompt_tokens) / seconds},
              {"requests_per_second", static_cast<double>(good) / seconds},
              {"goodput", static_cast<double>(within) / seconds},
              {"ttft", percentiles(first)},
              {"inter_token", percentiles(gaps)},
              {"whole", percentiles(whole)}};
  if (load.rate > 0)
    row["rate"] = load.rate;
  else
    row["clients"] = load.clients;
  return row;
}

Table load_table(const ServeBench& o, const json& rows) {
  Table table{o.target,
              "",
              {"load", "requests", "failed", "tokens/s", "requests/s", "good/s", "first p50", "p90", "p99", "gap p50",
               "p90", "p99"},
              {}};
  table.note = fmt::format("Milliseconds. Good: the first token within {} s and {} s between tokens on average.",
                           o.ttft_goal, o.gap_goal);
  for (const json& r : rows) {
    std::vector<std::string> cells = {r.contains("rate") ? fmt::format("{}/s", r["rate"].get<double>())
                                                         : fmt::format("{} clients", r["clients"].get<int64_t>()),
                                      r["requests"].dump(),
                                      r["failed"].dump(),
                                      number_text(r["tokens_per_second"], 1),
                                      number_text(r["requests_per_second"], 2),
                                      number_text(r["goodput"], 2)};
    for (const char* what : {"ttft", "inter_token"})
      for (const char* p : {"p50", "p90", "p99"})
        cells.push_back(r[what].is_null() ? "–" : number_text(1000 * r[what][p].get<double>(), 1));
    table.rows.push_back(std::move(cells));
  }
  return table;
}

void measure_all(ServeBench o) {
  const std::vector<Length> lengths = read_lengths(o);
  if (o.model.empty()) {
    HttpClient client(parse_address(o.target));
    std::string body;
    check(client.ask("GET", "/v1/models", o.key, "", body) == 200, "{}: /v1/models is not answered", o.target);
    const json list = parse_json(body, "/v1/models");
    check(list.contains("data") && !list["data"].empty() && list["data"][0].contains("id"),
          "{}: /v1/models names no model", o.target);
    o.model = list["data"][0]["id"].get<std::string>();
  }
  json report = {{"target", o.target}, {"model", o.model}, {"rows", json::array()}};
  std::vector<Load> loads;
  for (const double rate : o.rates) loads.push_back({0, rate});
  if (o.rates.empty())
    for (const int64_t clients : o.clients) loads.push_back({clients, 0});
  for (const Load& load : loads) {
    double seconds = 0;
    const auto all = run_load(o, load, lengths, seconds);
    report["rows"].push_back(summary_of(o, load, all, seconds));
  }
  const Table table = load_table(o, report["rows"]);
  if (!quiet(o.json)) fmt::print("{}", to_text(table));
  if (!o.page.empty())
    write_file_atomically(o.page, html_page(folder_name(o.model) + " under load", to_html(table), made_by()));
  write_json(o.json, report);
}

// A given model is served for the time of the measurement, on a free port.
void bench_serve(ServeBench o) {
  check_can_write({o.json, o.page});
  if (o.target.starts_with("http://")) return measure_all(std::move(o));
  o.served.run.model = o.target;
  serve::Server server({}, [&o] { return load_served(o.served); });
  const int port = server.http().listen("127.0.0.1", 0);
  std::exception_ptr failure;
  std::thread client;
  server.on_ready([&](const serve::ServedModel& model) {
    o.model = model.name;
    o.target = fmt::format("http://127.0.0.1:{}", port);
    client = std::thread([&] {
      try {
        measure_all(o);
      } catch (...) {
        failure = std::current_exception();
      }
      server.http().stop();
    });
  });
  try {
    server.run();
  } catch (...) {
    failure = std::current_exception();
  }
  if (client.joinable()) client.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

void add_bench_serve(CLI::App& bench) {
  auto o = std::make_shared<ServeBench>();
  CLI::App* verb = bench.add_subcommand("serve", "Latency and throughput of a server, this program's or another");
  verb->footer(
      "Examples:\n  fidelio bench serve models/quill-26m --clients 1,4,16\n"
      "  fidelio bench serve http://127.0.0.1:8000 --rate 2,4,8 --requests 200");
  verb->add_option("TARGET", o->target, "http://HOST:PORT of a server, or a model to serve for the measurement")
      ->required();
  verb->add_option("--clients", o->clients,
                   "Closed loop: this many clients, each of which asks again when it is answered")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  verb->add_option("--rate", o->rates, "Poisson: this many requests a second, whoever still waits")
      ->delimiter(',')
      ->check(above_zero());
  verb->add_option("--requests", o->requests, "Requests at each load")->check(CLI::Range(1, 1'000'000));
  verb->add_option("--prompt-words", o->prompt_words, "Words of a prompt")->check(above_zero());
  verb->add_option("--output-tokens", o->output_tokens, "Tokens of an answer")->check(above_zero());
  verb->add_option("--lengths", o->lengths, "JSONL of {\"prompt\": words, \"output\": tokens}, taken in turn");
  verb->add_option("--ttft-goal", o->ttft_goal, "Seconds to the first token of a good answer")->check(above_zero());
  verb->add_option("--gap-goal", o->gap_goal, "Mean seconds between its tokens")->check(above_zero());
  verb->add_option("--seed", o->seed, "Of prompts and of when requests come");
  verb->add_option("--api-key", o->key, "Sent with each request")->envname("FIDELIO_API_KEY");
  verb->add_option("--model", o->model, "The model's name; what /v1/models says unless given");
  verb->add_option("--max-sequences", o->served.max_sequences, "Answers computed side by side, of a MODEL")
      ->check(CLI::Range(1, 128));
  add_draft(*verb, o->served.draft);
  add_run_options(*verb, o->served.run);
  add_json(*verb, o->json);
  add_report(*verb, o->page);
  verb->callback([o] { bench_serve(*o); });
}

}  // namespace fidelio::app
