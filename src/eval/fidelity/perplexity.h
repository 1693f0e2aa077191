// This file measures perplexity over windows of a token stream. It also defines the windows, which measurements of
// fidelity use too.
//
// There are two protocols, told apart by the stride:
//   stride = context   windows lie side by side, an incomplete last one is dropped, and the first token of each window
//                      is not scored (models/data/report.json, GPTQ, llama.cpp's --chunks)
//   stride < context   the windows slide, as in Hugging Face's recipe: window i begins at i * stride. The first window
//                      scores all but its first token; each later one scores only what the windows before did not
//                      (its last `stride` tokens, or what is left at the end of the text)
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

// An EvalText is a tokenised text and its origin. `sha256` is the hash of the text's bytes, so that a report
// identifies its text.
struct EvalText {
  std::string name, sha256;
  std::vector<int32_t> ids;
  // Ranges of these ids, in order and disjoint, that a comparison also sums by themselves.
  std::vector<TokenSpan> apart{};
  int64_t given = 0;  // this many ids at the beginning are read but not scored, as a prompt is
};

struct WindowOptions {
  int64_t context = 512;
  int64_t stride = 0;   // 0 means the context
  int64_t windows = 0;  // only so many windows of each text, from its beginning; 0 means all
};

// Tokens [begin, end) are fed and tokens [first_scored, end) are scored. All are counted from the start of the text.
struct TextWindow {
  int64_t begin, end, first_scored;
};
// Returns the windows of a text. A text shorter than the context gives one window. Throws Error if the options are
// impossible or the text has fewer than two tokens.
std::vector<TextWindow> text_windows(int64_t tokens, const WindowOptions& options);

// A WindowSet holds the windows of several texts as sequences for a pass; `text` gives for each window the index of
// its text. A window that lies entirely within the unscored beginning of a text is left out.
struct WindowSet {
  std::vector<ScoredSequence> sequences;  // these refer to the texts' ids
  std::vector<int32_t> text;
};
WindowSet windows_of(std::span<const EvalText> texts, const WindowOptions& options);

// A WindowLoss is the negative log-likelihood, in nats, of the scored tokens of one window.
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

  int64_t tokens() const;  // number of scored tokens
  Estimate loss() const;   // mean in nats per token, bootstrapped by window
  Estimate perplexity() const;
};

PerplexityReport measure_perplexity(Runner& runner, std::span<const EvalText> texts, const PerplexityOptions& options,
                                    ThreadPool& pool, const ProgressCallback& progress = {});
// The JSON has the form {perplexity, loss, tokens, settings, texts, windows: [[nll, tokens], ...]}.
nlohmann::json to_json(const PerplexityReport& report);
nlohmann::json to_json(const WindowOptions& options);

// Returns the exp of a loss and of its interval.
Estimate perplexity_of(const Estimate& loss);

}  // namespace fidelio
