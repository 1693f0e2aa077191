// Perplexity over windows of a token stream, and the windows themselves, which fidelity shares.
//
// Two protocols, told apart by the stride:
//   stride = context   windows side by side, a ragged rest dropped; the first token of each window is not scored
//                      (models/data/report.json, GPTQ, llama.cpp's --chunks)
//   stride < context   Hugging Face's sliding window: window i begins at i * stride; all of the first one is
//                      scored but its first token, of each later one only what the windows before did not score (its
//                      last `stride` tokens, or what is left at the end of the text)
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/thread_pool.h"
#include "eval/fidelity/logit_pass.h"
#include "eval/statistics/statistics.h"
#include "runtime/texts/token_span.h"

namespace fidelio {

// A tokenised text and where it came from. `sha256` is of the text's bytes, so a report says what it was measured on.
struct EvalText {
  std::string name, sha256;
  std::vector<int32_t> ids;
  std::vector<TokenSpan> apart{};  // of these ids: a comparison sums them by themselves too, in order and disjoint
  int64_t given = 0;               // so many of the first ids are read and not scored: a prompt
};

struct WindowOptions {
  int64_t context = 512;
  int64_t stride = 0;   // 0: the context
  int64_t windows = 0;  // the first so many of each text; 0: all
};

// Tokens [begin, end) are fed, tokens [first_scored, end) are scored; all counted from the start of the text.
struct TextWindow {
  int64_t begin, end, first_scored;
};
// A text shorter than the context gives one window. Throws Error if the options are impossible or the text has fewer
// than two tokens.
std::vector<TextWindow> text_windows(int64_t tokens, const WindowOptions& options);

// The windows of several texts as sequences for a pass; `text` of each says which it belongs to. A window that lies in
// what a text has given is none.
struct WindowSet {
  std::vector<ScoredSequence> sequences;  // views into the texts
  std::vector<int32_t> text;
};
WindowSet windows_of(std::span<const EvalText> texts, const WindowOptions& options);

// Negative log-likelihood of one window's scored tokens, nats.
struct WindowLoss {
  double nll = 0;
  int64_t tokens = 0;
  int32_t text = 0;
};

struct PerplexityOptions {
  WindowOptions windows{};
  Reading mode = Activations::a16;
  BootstrapOptions bootstrap{};
};

struct PerplexityReport {
  PerplexityOptions options;
  std::vector<std::string> text_names, text_sha256;
  std::vector<WindowLoss> windows;

  int64_t tokens() const;  // scored
  Estimate loss() const;   // mean nats a token, bootstrapped by window
  Estimate perplexity() const;
};

PerplexityReport measure_perplexity(Runner& runner, std::span<const EvalText> texts, const PerplexityOptions& options,
                                    ThreadPool& pool, const ProgressCallback& progress = {});
nlohmann::json to_json(
    const PerplexityReport& report);  // {perplexity, loss, tokens, settings, texts, windows: [[nll, tokens], ...]}
nlohmann::json to_json(const WindowOptions& options);

// exp of a loss and of its interval.
Estimate perplexity_of(const Estimate& loss);

}  // namespace fidelio
