#include "app/options/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>

#include "core/foreign/foreign_text.h"

namespace fidelio::app {
namespace {

namespace fs = std::filesystem;

// Returns the edit distance of Damerau and Levenshtein, in which a swap of neighbours counts once.
size_t edits(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

const std::map<std::string, std::string> kOtherNames = {
    {"run", "chat"},          {"talk", "chat"},        {"complete", "generate"}, {"infer", "generate"},
    {"prompt", "generate"},   {"info", "inspect"},     {"show", "inspect"},      {"ls", "inspect"},
    {"list", "inspect"},      {"perplexity", "eval"},  {"ppl", "eval"},          {"evaluate", "eval"},
    {"test", "eval"},         {"convert", "export"},   {"save", "export"},       {"quant", "quantize"},
    {"quantise", "quantize"}, {"gptq", "quantize"},    {"verify", "certify"},    {"check", "certify"},
    {"shrink", "compress"},   {"squeeze", "compress"}, {"optimize", "compress"}, {"prune", "compress"},
    {"benchmark", "bench"},   {"speed", "bench"},      {"diff", "compare"},      {"encode", "tokenize"},
    {"tokenise", "tokenize"},
};

std::string how_to_download(const std::string& folder) {
  const size_t slash = folder.find('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == folder.size() ||
      folder.find('/', slash + 1) != std::string::npos)
    return "";
  const auto plain = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == '/'; };
  const std::string owner = folder.substr(0, slash), name = folder.substr(slash + 1);
  if (!std::all_of(folder.begin(), folder.end(), plain) || owner[0] == '.' || name[0] == '.') return "";
  std::error_code ignored;
  if (fs::exists(folder, ignored) || fs::exists(owner, ignored)) return "";
  return fmt::format(
      "there is no folder {0}. If that is a model on the Hugging Face hub, download it first (pip install "
      "huggingface_hub):\n  hf download {0} --local-dir {1}\nand give the folder: {1}",
      folder, name);
}

}  // namespace

std::string nearest_word(const std::string& word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t least = std::max<size_t>(1, word.size() / 3) + 1;
  if (word.size() > 40) return "";
  for (const std::string& candidate : candidates) {
    const size_t distance = edits(word, candidate);
    if (distance < least) least = distance, best = candidate;
  }
  return best;
}

std::string verb_for(const std::string& word, const std::vector<std::string>& verbs) {
  const std::string lower = lower_case(word);
  const auto known = [&](const std::string& verb) {
    return std::find(verbs.begin(), verbs.end(), verb) != verbs.end();
  };
  if (known(lower)) return lower;
  const auto found = kOtherNames.find(lower);
  if (found != kOtherNames.end() && known(found->second)) return found->second;
  return nearest_word(lower, verbs);
}

std::string about_model(const std::string& folder) {
  if (folder.empty()) return "expected the folder of a model, got nothing";
  std::error_code ignored;
  if (fs::exists(fs::path(folder) / "config.json", ignored)) return "";
  // The hub's cache keeps each version of a model in a folder of its own.
  std::string versions;
  for (const auto& entry : fs::directory_iterator(fs::path(folder) / "snapshots", ignored))
    if (fs::exists(entry.path() / "config.json", ignored)) versions += "\n  " + foreign(entry.path().string());
  if (!versions.empty())
    return fmt::format("{} is the hub's cache of a model; give the folder of a version:{}", foreign(folder), versions);
  return how_to_download(folder);
}

std::string about_unknown_option(const CLI::App& app, const std::vector<std::string>& unknown) {
  const CLI::App* verb = &app;
  std::string whole;
  while (!verb->get_subcommands().empty()) {
    verb = verb->get_subcommands().front();
    whole += (whole.empty() ? "" : " ") + verb->get_name();
  }
  std::vector<std::string> names;
  for (const CLI::Option* option : verb->get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  std::string message;
  for (const std::string& word : unknown) {
    const std::string name = word.substr(0, word.find('='));
    const std::string near = name.starts_with("--") ? nearest_word(name, names) : "";
    if (name.starts_with("-"))
      message += fmt::format("{}{} has no option {}{}", message.empty() ? "" : "\n", whole, name,
                             near.empty() ? "" : fmt::format("; did you mean {}?", near));
  }
  return message.empty() ? fmt::format("{} takes no further argument: \"{}\"", whole, fmt::join(unknown, " "))
                         : message;
}

std::string about_missing(const CLI::App& app, const std::string& message) {
  const CLI::App* verb = &app;
  while (!verb->get_subcommands().empty()) verb = verb->get_subcommands().front();
  for (const CLI::Option* option : verb->get_options())
    if (!option->get_positional() && option->get_expected_max() > 1 && option->results().size() > 1)
      return fmt::format("{}; {} took all {} words behind it: the model goes before it", message, option->get_name(),
                         option->results().size());
  return message;
}

}  // namespace fidelio::app
