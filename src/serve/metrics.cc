#include "serve/metrics.h"

#include <fmt/format.h>

namespace fidelio::serve {
namespace {

std::string quoted(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

}  // namespace

void Histogram::add(double seconds) {
  size_t bucket = 0;
  while (bucket < kBounds.size() && seconds > kBounds[bucket]) ++bucket;
  ++counts_[bucket];
  sum_ += seconds;
}

void Histogram::print(std::string& to, const std::string& name, const std::string& labels) const {
  to += fmt::format("# TYPE {} histogram\n", name);
  int64_t below = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    const std::string bound = i < kBounds.size() ? fmt::format("{}", kBounds[i]) : "+Inf";
    to += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, below);
  }
  to += fmt::format("{0}_sum{{{1}}} {2}\n{0}_count{{{1}}} {3}\n", name, labels, sum_, below);
}

void Metrics::finished(const std::string& reason, double seconds, int64_t prompt_tokens, int64_t tokens) {
  ++finished_[reason];
  whole_.add(seconds);
  prompt_tokens_ += prompt_tokens;
  tokens_ += tokens;
}

std::string Metrics::text(const EngineStatus& status, const std::string& model) const {
  const std::string labels = "model_name=\"" + quoted(model) + "\"";
  std::string out;
  const auto one = [&](const char* name, const char* type, double value) {
    out += fmt::format("# TYPE vllm:{0} {1}\nvllm:{0}{{{2}}} {3}\n", name, type, labels, value);
  };
  const EngineCounters& c = status.counters;
  one("num_requests_running", "gauge", static_cast<double>(status.running));
  one("num_requests_waiting", "gauge", static_cast<double>(status.waiting));
  one("kv_cache_usage_perc", "gauge",
      status.pages > 0 ? 1 - static_cast<double>(status.free_pages) / static_cast<double>(status.pages) : 0);
  if (status.state_slots > 0) {
    const auto slots = [&](const char* name, int64_t value) {
      out += fmt::format("# TYPE fidelio:{0} gauge\nfidelio:{0}{{{1}}} {2}\n", name, labels, value);
    };
    slots("state_slots", status.state_slots);
    slots("state_slots_free", status.free_states);
    slots("state_snapshots", status.snapshots);
  }
  one("prompt_tokens_total", "counter", static_cast<double>(prompt_tokens_));
  one("generation_tokens_total", "counter", static_cast<double>(tokens_));
  one("num_preemptions_total", "counter", static_cast<double>(c.preemptions));
  one("prefix_cache_hits_total", "counter", static_cast<double>(c.reused_tokens));
  one("spec_decode_num_draft_tokens_total", "counter", static_cast<double>(c.drafted + c.looked_up));
  one("spec_decode_num_accepted_tokens_total", "counter", static_cast<double>(c.accepted + c.lookup_accepted));
  out += "# TYPE vllm:request_success_total counter\n";
  for (const auto& [reason, count] : finished_)
    out += fmt::format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", labels, reason, count);
  first_token_.print(out, "vllm:time_to_first_token_seconds", labels);
  next_token_.print(out, "vllm:inter_token_latency_seconds", labels);
  whole_.print(out, "vllm:e2e_request_latency_seconds", labels);
  return out;
}

}  // namespace fidelio::serve
