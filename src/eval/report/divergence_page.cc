// This file writes the HTML page of a DivergenceReport: where two models' answers part.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "eval/fidelity/divergence.h"
#include "eval/report/html.h"
#include "eval/report/table.h"
#include "eval/statistics/proportions.h"

namespace fidelio {
namespace {

// Returns a token as its file spells it, with blanks, tabs and line ends made visible.
std::string shown_token(const Tokenizer& tokenizer, int32_t id) {
  const std::string text = tokenizer.decode_inside(id);
  std::string shown;
  for (char c : text) shown += c == '\n' ? "⏎" : c == ' ' ? "␣" : c == '\t' ? "⇥" : std::string(1, c);
  return shown;
}

std::string short_prompt(const std::string& prompt) {
  std::string line = prompt.substr(0, prompt.find('\n'));
  constexpr size_t kLongest = 60;
  if (line.size() <= kLongest) return line;
  size_t cut = kLongest;
  while (cut > 0 && (static_cast<unsigned char>(line[cut]) & 0xC0) == 0x80) --cut;
  return line.substr(0, cut) + "…";
}

std::string card(const std::string& value, const std::string& name) {
  return "<div class=\"card\"><b>" + escape_html(value) + "</b><span>" + escape_html(name) + "</span></div>";
}

std::string summary_cards(const DivergenceReport& r) {
  std::vector<double> agreements;
  for (const PromptDivergence& p : r.prompts)
    if (!p.tokens.empty())
      agreements.push_back(1 - static_cast<double>(p.divergent()) / static_cast<double>(p.tokens.size()));
  const Estimate all = r.agreement();
  return "<div class=\"cards\">" + card(fmt::format("{:.2f}%", 100 * all.value), "of tokens agree") +
         card(
             std::isfinite(all.ci95.low) ? fmt::format("{:.1f}–{:.1f}%", 100 * all.ci95.low, 100 * all.ci95.high) : "–",
             "95% interval, by prompt") +
         card(fmt::format("{} / {}", r.divergent(), r.tokens()), "divergent tokens") +
         card(fmt::format("{}", r.prompts.size()), "prompts") +
         card(fmt::format("{:.1f}–{:.1f}%", 100 * percentile(agreements, 0), 100 * percentile(agreements, 100)),
              "least and most by prompt") +
         "</div>\n";
}

// Charts the agreement in twenty equal parts of the longest answer, to show whether the difference grows along the
// text.
Chart by_position(const DivergenceReport& r) {
  size_t longest = 1;
  for (const PromptDivergence& p : r.prompts) longest = std::max(longest, p.tokens.size());
  const size_t parts = std::min<size_t>(20, longest);
  std::vector<int64_t> right(parts), total(parts);
  for (const PromptDivergence& p : r.prompts)
    for (size_t i = 0; i < p.tokens.size(); ++i) {
      ++total[i * parts / longest];
      right[i * parts / longest] += p.tokens[i].agree();
    }
  Chart chart{.title = "Agreement along the answer",
              .x_label = "position in the answer (tokens)",
              .y_label = "agreement",
              .series = {{"agreement", {}}}};
  for (size_t k = 0; k < parts; ++k) {
    const Estimate e = wilson(static_cast<double>(right[k]), total[k]);
    chart.series[0].points.push_back(
        {(static_cast<double>(k) + 0.5) * static_cast<double>(longest) / static_cast<double>(parts), e.value,
         e.ci95.low, e.ci95.high});
  }
  return chart;
}

Table by_entropy(const DivergenceReport& r) {
  std::array<int64_t, kEntropyEdges.size()> total{}, differs{};
  for (const PromptDivergence& p : r.prompts)
    for (const TokenDivergence& t : p.tokens) {
      const auto bin = static_cast<size_t>(entropy_bin(t.entropy));
      ++total[bin];
      differs[bin] += !t.agree();
    }
  Table table{"By the entropy of the first model",
              "Flips where the first model is nearly sure are the ones that matter; Wilson intervals.",
              {"entropy, nats", "tokens", "divergent", "share [95%]"},
              {}};
  for (size_t i = 0; i < total.size(); ++i) {
    const std::string range = i + 1 < kEntropyEdges.size()
                                  ? fmt::format("{} – {}", kEntropyEdges[i], kEntropyEdges[i + 1])
                                  : fmt::format("{} and more", kEntropyEdges[i]);
    table.rows.push_back({range, fmt::format("{}", total[i]), fmt::format("{}", differs[i]),
                          interval_text(wilson(static_cast<double>(differs[i]), total[i]), 4)});
  }
  return table;
}

Table by_prompt(const DivergenceReport& r) {
  Table table{"By prompt", "", {"prompt", "tokens", "agreement", "divergent", "mean KL", "ended by"}, {}};
  for (const PromptDivergence& p : r.prompts) {
    double kl = 0;
    for (const TokenDivergence& t : p.tokens) kl += static_cast<double>(t.kl);
    const auto n = static_cast<double>(p.tokens.size());
    table.rows.push_back({short_prompt(p.prompt), fmt::format("{}", p.tokens.size()),
                          number_text(1 - static_cast<double>(p.divergent()) / n, 4), fmt::format("{}", p.divergent()),
                          number_text(kl / n, 5), std::string(name_of(p.finish_reason))});
  }
  return table;
}

Table frequent(const DivergenceReport& r, const Tokenizer& tokenizer) {
  Table table{"Tokens most often replaced", "", {"token", "times", "by"}, {}};
  for (const Substitution& s : substitutions(r)) {
    std::string others;
    for (size_t i = 0; i < std::min<size_t>(5, s.others.size()); ++i)
      others += (i == 0 ? "" : ", ") + shown_token(tokenizer, s.others[i].first) +
                (s.others[i].second > 1 ? fmt::format(" ×{}", s.others[i].second) : "");
    table.rows.push_back({shown_token(tokenizer, s.id), fmt::format("{}", s.count), others});
  }
  return table;
}

// Marks every divergent token in the text. The stronger the mark, the surer the second model was of its own choice.
std::string annotated(const PromptDivergence& p, const Tokenizer& tokenizer) {
  std::string html = "<div class=\"tokens\"><span class=\"prompt\">" + escape_html(p.prompt) + "\n\n</span>";
  for (size_t i = 0; i < p.tokens.size(); ++i) {
    const TokenDivergence& t = p.tokens[i];
    if (t.agree()) {
      html += escape_html(p.texts[i]);
      continue;
    }
    const std::string title = fmt::format(
        "token {}: {:.1f}% under the first model, {:.1f}% under the second, which says {} at {:.1f}%; KL {:.4f}", i,
        100 * t.p_token, 100 * t.q_token, shown_token(tokenizer, t.other), 100 * t.q_other, t.kl);
    const int weight = static_cast<int>(std::lround(20 + 50 * std::clamp(t.q_other - t.q_token, 0.0f, 1.0f)));
    html += fmt::format("<mark style=\"--w:{}\" title=\"{}\">{}<sup>{}</sup></mark>", weight, escape_html(title),
                        escape_html(p.texts[i]), escape_html(shown_token(tokenizer, t.other)));
  }
  return html + "</div>\n";
}

}  // namespace

std::string to_html(const DivergenceReport& r, const Tokenizer& tokenizer, std::string_view made_by) {
  std::string body =
      "<p class=\"lead\">" + escape_html(r.name_a) + " answers greedily; its tokens are forced through " +
      escape_html(r.name_b) +
      ", and wherever that would have said something else the token is marked, with what it would have said.</p>\n";
  body += summary_cards(r);
  body += "<h2>Where they differ</h2>\n" + svg_chart(by_position(r)) + to_html(by_entropy(r)) +
          to_html(frequent(r, tokenizer)) + to_html(by_prompt(r));
  body +=
      "<h2>The answers</h2>\n<p class=\"note\">The stronger a mark, the surer the second model was of its own token. "
      "Point at a mark for the probabilities.</p>\n";
  for (size_t i = 0; i < r.prompts.size(); ++i) {
    const PromptDivergence& p = r.prompts[i];
    const double agreement = 100 * (1 - static_cast<double>(p.divergent()) / static_cast<double>(p.tokens.size()));
    body += fmt::format(
        "<details{}><summary>{} <span class=\"note\">{} tokens, {:.1f}% agree</span></summary>{}</details>\n",
        i < 3 ? " open" : "", escape_html(short_prompt(p.prompt)), p.tokens.size(), agreement, annotated(p, tokenizer));
  }
  return html_page(r.name_a + " and " + r.name_b + ", token by token", body, made_by);
}

}  // namespace fidelio
