#include "compress/card/card_block.h"

#include "compress/card/card_head.h"
#include "compress/certificate/words.h"
#include "core/error.h"
#include "core/foreign/foreign_text.h"
#include "core/foreign/units.h"

namespace fidelio {
namespace {

std::string row(const std::string& what, const std::string& figure) {
  return fmt::format("| {} | {} |\n", markdown_text(what), markdown_text(figure));
}

}  // namespace

std::string card_block(const CardFacts& facts) {
  check(facts.certificate.has_value(), "{} carries no certificate; `fidelio compress` writes one", facts.name);
  const Certificate& c = *facts.certificate;
  std::string text = fmt::format(
      "## Fidelity\n\n{}, {:.3f} bits a parameter. Measured by {} beside the original, as it is served (activations "
      "{}, "
      "cache {}), on {} tokens of {} {} in pieces of up to {} tokens; intervals are of 95% by document.{}\n\n",
      bytes_text(facts.bytes), 8 * static_cast<double>(facts.bytes) / static_cast<double>(facts.parameters),
      markdown_text(facts.version.empty() ? "fidelio" : facts.version), c.activations, c.kv, c.all.tokens,
      c.all.documents, c.passages ? "passages" : "documents", c.context,
      facts.kept ? "" : " **The certificate in the model's file does not hold.**");
  text += "| | |\n|---|---|\n";
  for (const DomainFidelity& d : c.domains)
    text += row(fmt::format("overlap of next-token probabilities (EAR), {}", d.domain), percent_with_interval(d.ear));
  text += row("KL divergence, nats a token", fmt::format("{:.6f}", c.all.kl.value));
  if (c.tails.positions > 0)
    text += row("KL at 99%, 99.9% of tokens, largest",
                fmt::format("{:.5f}, {:.5f}, {:.5f}", c.tails.kl_p99, c.tails.kl_p999, c.tails.kl_largest));
  text += row("same first choice", percent_with_interval(c.all.top1));
  if (c.sampling && c.all.ear_sampled)
    text += row("overlap at " + sampling_text(*c.sampling), percent_with_interval(*c.all.ear_sampled));
  if (c.floor)
    text += row("overlap of the original itself through the same kernels (floor)", percent_with_interval(c.floor->ear));
  if (c.answers)
    text += row(fmt::format("greedy answers of {} tokens without a difference", c.answers->max_tokens),
                fmt::format("{} of {}", c.answers->same, c.answers->prompts));
  return text +
         fmt::format("\nMeasured again by `fidelio certify {} --reference ORIGINAL` (original: SHA-256 {}...).\n",
                     visible(facts.name), c.reference_sha256.substr(0, 12));
}

}  // namespace fidelio
