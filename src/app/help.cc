#include "app/help.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <sstream>

namespace fidelio::app {
namespace {

using Names = std::vector<std::string>;

constexpr const char* kFirstGroup = "What you need first";
constexpr const char* kOtherGroup = "Options";  // CLI11 gives this name to options without a group.
constexpr const char* kHelpGroup = "Help";
// Groups are shown in this order; groups that a verb names itself follow.
const Names kGroups = {kFirstGroup, "Target",           "Text",      "Questions", "Search", "Tuning",
                       "Draft",     "Choice of tokens", kOtherGroup, "Machine",   "Output"};

// This gives the group of an option by its name, which means the same in every verb.
const std::map<std::string, Names> kNamesOf = {
    {"Target",
     {"ear", "kl", "bits", "bytes", "tokens-per-second", "promise", "for", "format", "embedding", "keep-embedding",
      "accuracy-drop", "calibration-bits"}},
    {"Text",
     {"text", "calibration", "calibration-tokens", "calibration-samples", "calibration-context", "search-tokens",
      "context", "certificate-windows", "prompts", "gradient-tokens", "held-tokens", "samples-file", "stride"}},
    {"Search", {"formats",     "rule",         "ignore",
                "plan",        "from-table",   "grouping",
                "method",      "permutations", "sensitivity-error",
                "allocate-by", "search",       "generations",
                "max-trials",  "steps",        "paper",
                "alpha",       "rotate",       "atom",
                "view-bits",   "view-weight",  "seed"}},
    {"Tuning", {"tune",           "tune-steps",   "tune-windows", "tune-tokens", "tune-samples", "loss",
                "rounds",         "settle-steps", "layer-steps",  "windows",     "rows",         "products",
                "evaluate-every", "patience",     "warmup",       "memory",      "start",        "clip",
                "code-rate",      "scale-rate",   "zero-rate",    "grid-rate",   "dense-rate",   "keep-dense"}},
    {"Draft", {"draft", "drafts", "fixed-drafts", "kinds", "head-tokens", "by-bytes", "draft-temperature"}},
    {"Choice of tokens",
     {"temperature", "top-k", "top-p", "min-p", "repetition-penalty", "presence-penalty", "frequency-penalty",
      "recommended", "no-recommended", "max-tokens", "stop"}},
    {"Machine", {"device", "threads", "isa", "activations", "kv"}},
    {"Output",
     {"output", "json", "report", "csv", "table", "progress", "dry-run", "fresh", "state", "save-seconds", "cache"}}};
// In some verbs the option is about something else.
const std::map<std::string, std::map<std::string, std::string>> kElsewhere = {
    {"tune", {{"steps", "Tuning"}, {"seed", "Tuning"}}},
    {"chat", {{"seed", "Choice of tokens"}}},
    {"generate", {{"seed", "Choice of tokens"}}},
    {"eval", {{"windows", "Text"}, {"seed", "Choice of tokens"}}},
    {"noise", {{"windows", "Text"}}},
    {"gamma", {{"windows", "Text"}}},
    {"compress", {{"draft", "Output"}}}};

// This lists the options that --help shows for verbs with many. The first ones stand in a group before all others.
struct ShownOptions {
  Names first, then;
};
const std::map<std::string, ShownOptions> kShownOptions = {
    {"compress",
     {{"ear", "output"}, {"bits", "bytes", "for", "text", "tune", "draft", "device", "threads", "dry-run", "report"}}},
    {"quantize",
     {{"format", "output"},
      {"method", "embedding", "keep-embedding", "calibration", "calibration-tokens", "device", "threads"}}},
    {"tune", {{"reference", "output"}, {"calibration", "steps", "rounds", "device", "threads"}}},
    {"certify", {{"reference", "text"}, {"device", "threads", "report"}}},
    {"draft", {{"tune", "dry-run"}, {"kinds", "prompts", "device", "threads"}}},
    {"chat", {{"system", "temperature"}, {"max-tokens", "no-recommended", "draft", "device", "threads"}}},
    {"generate", {{"prompt", "chat"}, {"max-tokens", "temperature", "recommended", "draft", "device", "threads"}}},
    {"serve", {{"port", "api-key"}, {"host", "name", "max-sequences", "draft", "device", "threads"}}},
    {"eval", {{"text", "reference"}, {"tasks", "context", "device", "threads", "report"}}}};

// This says for each verb which model its argument MODEL is.
const std::map<std::string, std::string> kModelWords = {
    {"compress", "The model to compress"},
    {"certify", "The compressed model whose certificate is measured"},
    {"quantize", "The model to quantise"},
    {"tune", "The quantised model to tune"},
    {"draft", "The model to choose a draft for"},
    {"export", "The model to export, made by `fidelio compress`, `quantize` or `tune`"},
    {"chat", "The model to talk to"},
    {"generate", "The model that continues"},
    {"serve", "The model to serve"},
    {"eval", "The model to measure"},
    {"recovery", "The original, and the models compared with it"},
    {"compare", "The two models"},
    {"noise", "The model that noise is added to"},
    {"gamma", "The model whose weights are looked at"},
    {"inspect", "The model to look at"},
    {"tokenize", "The model whose tokenizer is used"},
    {"logits", "The model that computes them"},
    {"samples", "The model that writes"}};
constexpr const char* kModelForms =
    "a folder made by fidelio or downloaded from Hugging Face (plain, or quantised by GPTQ, AWQ or "
    "compressed-tensors), or a .gguf file";

bool listed_in(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string option_name(const CLI::Option& option) {
  return option.get_lnames().empty() ? option.get_name() : option.get_lnames().front();
}

// Shortens CLI11's "FLOAT:POSITIVE", "INT:INT in [0 - 9]" and "TEXT:{a,b}" to the essential "NUMBER", "N in [0 - 9]"
// and "{a,b}".
std::string kind_of_value(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::string base = type.substr(0, type.find_first_of(": "));
  if (const size_t choices = type.find('{'); choices != std::string::npos) return type.substr(choices);
  const std::string kind = base == "FLOAT" ? "NUMBER" : base == "INT" || base == "UINT" ? "N" : base;
  const size_t range = type.find("in [");
  return range == std::string::npos ? kind : kind + " " + type.substr(range);
}

// Returns the whole name of a verb, such as "compress" or "bench serve", which differs from the verb "serve".
std::string whole_name(const CLI::App& verb) {
  const CLI::App* above = verb.get_parent();
  return above == nullptr || above->get_parent() == nullptr ? verb.get_name()
                                                            : above->get_name() + " " + verb.get_name();
}

class HelpText final : public CLI::Formatter {
 public:
  HelpText() {
    label("SUBCOMMAND", "VERB");
    label("OPTIONS", "OPTIONS");
    label("REQUIRED", "(required)");
  }

  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    if (mode == CLI::AppFormatMode::Sub) return make_expanded(app);
    return make_description(app) + make_usage(app, name) + make_positionals(app) + grouped_options(app, mode) +
           make_subcommands(app, mode) + "\n" + make_footer(app);
  }

  // Returns the kind of value that an option takes, as in "--ear NUMBER ...". CLI11's own text repeats which options
  // need and exclude each other, which the error says when it is violated, and the names of checks.
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text;
    if (option->get_type_size() != 0 && !option->get_type_name().empty()) text += " " + kind_of_value(*option);
    if (option->get_type_size() != 0 && option->get_expected_max() == CLI::detail::expected_max_vector_size)
      text += " ...";
    if (option->get_required() && option->nonpositional()) text += " " + get_label("REQUIRED");
    return text;
  }

  // At a terminal lines are broken between words and continue below the first.
  std::string make_option_desc(const CLI::Option* option) const override {
    winsize size = {};
    if (::isatty(STDOUT_FILENO) == 0 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 60)
      return option->get_description();
    const size_t room = std::min<size_t>(size.ws_col, 120) - get_column_width() - 1;
    std::istringstream words(option->get_description());
    std::string text;
    size_t used = 0;
    for (std::string word; words >> word;) {
      const bool breaks = used > 0 && used + 1 + word.size() > room;
      text += (used == 0 ? "" : breaks ? "\n" : " ") + word;
      used = breaks || used == 0 ? word.size() : used + 1 + word.size();
    }
    return text;
  }

 private:
  // Returns all groups in their order. For a verb with many options it returns those that --help shows, unless all are
  // asked for.
  std::string grouped_options(const CLI::App* app, CLI::AppFormatMode mode) const {
    const auto shown = kShownOptions.find(whole_name(*app));
    const bool some = mode == CLI::AppFormatMode::Normal && shown != kShownOptions.end();
    Names groups = kGroups;
    for (const std::string& group : app->get_groups())
      if (!listed_in(groups, group) && group != kHelpGroup) groups.push_back(group);
    groups.emplace_back(kHelpGroup);
    std::string text;
    size_t hidden = 0;
    for (const std::string& group : groups) {
      std::vector<const CLI::Option*> options = app->get_options([&](const CLI::Option* option) {
        return option->nonpositional() && !option->get_group().empty() && option->get_group() == group;
      });
      if (some)
        hidden += std::erase_if(options, [&](const CLI::Option* option) {
          const std::string name = option_name(*option);
          return group != kHelpGroup && !listed_in(shown->second.first, name) && !listed_in(shown->second.then, name);
        });
      if (shown != kShownOptions.end() && group == kFirstGroup)
        std::sort(options.begin(), options.end(), InOrder{shown->second.first});
      if (!options.empty()) text += make_group(group, false, options);
    }
    if (hidden > 0) text += fmt::format("\n{} more options: fidelio {} --help-all\n", hidden, app->get_name());
    return text;
  }

  struct InOrder {
    const Names& names;
    bool operator()(const CLI::Option* a, const CLI::Option* b) const { return at(a) < at(b); }
    std::ptrdiff_t at(const CLI::Option* option) const {
      return std::find(names.begin(), names.end(), option_name(*option)) - names.begin();
    }
  };
};

std::string help_group_of(const std::string& verb, const std::string& name) {
  if (name == "help" || name == "help-all") return kHelpGroup;
  const auto shown = kShownOptions.find(verb);
  if (shown != kShownOptions.end() && listed_in(shown->second.first, name)) return kFirstGroup;
  if (const auto in = kElsewhere.find(verb); in != kElsewhere.end())
    if (const auto found = in->second.find(name); found != in->second.end()) return found->second;
  for (const auto& [group, names] : kNamesOf)
    if (listed_in(names, name)) return group;
  return kOtherGroup;
}

}  // namespace

void begin_help(CLI::App& app) {
  app.formatter(std::make_shared<HelpText>());
  app.set_help_flag("-h,--help", "What matters most");
  app.set_help_all_flag("--help-all", "Every option");
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string(error.what()) + "\nRun with --help for more information.\n";
  });
}

void arrange_help(CLI::App& app) {
  for (CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    arrange_help(*verb);
    const std::string name = whole_name(*verb);
    for (CLI::Option* option : verb->get_options()) {
      if (option->get_positional()) {
        const auto model = kModelWords.find(name);
        if (option->get_name(true) == "MODEL" && model != kModelWords.end())
          option->description(model->second + (name == "export" ? "" : std::string(": ") + kModelForms));
      } else if (option->get_group() == kOtherGroup) {
        option->group(help_group_of(name, option_name(*option)));
      }
    }
  }
}

std::string help_of(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* verb = &app;
  std::string before;
  for (const std::string& word : words) {
    const auto parts = verb->get_subcommands([&](const CLI::App* part) { return part->get_name() == word; });
    if (parts.empty()) return "";
    before += (before.empty() ? "" : " ") + verb->get_name();
    verb = parts.front();
  }
  return verb->help(before);
}

}  // namespace fidelio::app
