// This file collects the server's metrics for Prometheus, under vLLM's names, so dashboards made for vLLM work.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "serve/engine_thread.h"

namespace fidelio::serve {

// This counts values by upper bounds; the last bucket has no bound.
class Histogram {
 public:
  // The bounds are in seconds.
  static constexpr std::array<double, 16> kBounds = {.001, .0025, .005, .01, .025, .05, .1, .25,
                                                     .5,   1,     2.5,  5,   10,   30,  60, 120};
  void add(double seconds);
  void print(std::string& to, const std::string& name, const std::string& labels) const;

 private:
  std::array<int64_t, kBounds.size() + 1> counts_{};
  double sum_ = 0;
};

// All members are called on the event loop.
class Metrics {
 public:
  void first_token(double seconds) { first_token_.add(seconds); }
  void next_token(double seconds) { next_token_.add(seconds); }
  void finished(const std::string& reason, double seconds, int64_t prompt_tokens, int64_t tokens);
  std::string text(const EngineStatus& status, const std::string& model) const;

 private:
  Histogram first_token_, next_token_, whole_;
  std::map<std::string, int64_t> finished_;
  int64_t prompt_tokens_ = 0, tokens_ = 0;
};

}  // namespace fidelio::serve
