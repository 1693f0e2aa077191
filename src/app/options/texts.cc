#include "app/options/texts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "compress/certificate/words.h"
#include "core/error.h"
#include "core/hash.h"
#include "io/model_source.h"
#include "runtime/texts/bundled.h"
#include "runtime/texts/corpus.h"
#include "runtime/texts/words.h"

namespace fidelio::app {
namespace {

// These are the SHA-256 of the tokenizer.json of quill-1m and quill-26m.
constexpr std::array<std::string_view, 2> kQuills = {
    "0213b7b2c4a8dc0f27b98b871ef93f9eeb6b15a373e668b6aa57fabc393c0154",
    "3010395a8abab07082d30da470f2f5c32e77adc13c2db36e4d4716773b477f1f"};

}  // namespace

std::vector<EvalText> read_texts(const std::vector<std::string>& files, const Tokenizer& tokenizer) {
  std::vector<EvalText> texts;
  for (const std::string& path : files) {
    const std::string text = read_text(path);
    texts.push_back({path, sha256_hex(text), tokenizer.encode(text, false)});
  }
  return texts;
}

BundledTexts bundled_texts(const std::string& model) {
  const auto tokenizer = open_text_files(model).read("tokenizer.json");
  const std::string hash = tokenizer ? sha256_hex(*tokenizer) : "";
  if (std::find(kQuills.begin(), kQuills.end(), hash) != kQuills.end())
    return {bundled_text("docs-calibration.txt") + ":docs", bundled_text("docs-heldout.txt") + ":docs"};
  return {bundled_text("corpus-calibration.jsonl"), bundled_text("corpus-heldout.jsonl")};
}

CLI::Validator text_source() {
  return CLI::Validator(
      [](std::string& argument) {
        const std::string path = parse_text_source(argument).path;
        return text_exists(path) ? std::string() : fmt::format("{} is not there", path);
      },
      "TEXT");
}

CLI::Validator text_source_or_word() {
  return CLI::Validator(
      [](std::string& argument) {
        try {
          if (is_text_word(argument)) return std::string();
        } catch (const Error& e) {
          return std::string(e.what());
        }
        const std::string path = parse_text_source(argument).path;
        return text_exists(path) ? std::string() : fmt::format("{} is not there", path);
      },
      "TEXT");
}

std::vector<std::string> beside_words(std::vector<std::string> asked, const std::string& bundled) {
  if (std::all_of(asked.begin(), asked.end(), is_text_word)) asked.insert(asked.begin(), bundled);
  return asked;
}

void print_domains(const Certificate& certificate) {
  for (const DomainFidelity& d : certificate.domains)
    fmt::print(
        "  {:<10} EAR {:.5f} [{:.5f}, {:.5f}], KL {:.6f}; one new document: {:.5f} to {:.5f}; {} {}, {} windows\n",
        d.domain, d.ear.value, d.ear.ci95.low, d.ear.ci95.high, d.kl.value, d.document_ear.ci95.low,
        d.document_ear.ci95.high, d.documents, certificate.passages ? "passages" : "documents", d.windows);
}

void print_plain_words(const Certificate& certificate, bool kept) {
  for (const PlainWords& w : in_plain_words(certificate, kept)) fmt::print("  {}: {}\n", w.about, w.sentence);
}

}  // namespace fidelio::app
