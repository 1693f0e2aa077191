#include "app/options/draft.h"

#include <filesystem>

#include "core/file.h"

namespace fidelio::app {
namespace {

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('+', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::optional<Activations> activations_named(const std::string& name) {
  for (Activations mode : kAllActivations)
    if (name == name_of(mode)) return mode;
  return std::nullopt;
}

bool can_read(const Runner& runner, Reading reading) {
  return runner.bytes_read(reading) < runner.bytes_read(reading.activations);
}

void check_same_tokens(const std::string& draft, const std::string& model) {
  const auto tokens = [](const std::string& folder) { return read_text_file(folder + "/tokenizer.json"); };
  check(tokens(draft) == tokens(model), "--draft {}: its tokenizer.json is not that of {}: its tokens mean others",
        draft, model);
}

// One part that is not lookup.
void add_part(const std::string& part, Runner& model, const RunOptions& run, Draft& draft) {
  check(draft.how.draft == nullptr, "--draft {}: one reading or folder, and lookup beside it", draft.name);
  const size_t colon = part.rfind(':');
  std::string what = part;
  Activations mode = parse_activations(run.activations);
  if (colon != std::string::npos) {
    const auto named = activations_named(part.substr(colon + 1));
    if (named) mode = *named, what = part.substr(0, colon);
  }
  if (const auto named = activations_named(what)) {
    draft.how.draft = &model;
    draft.how.reading = *named;
  } else if (what.size() == 1 && what[0] >= '1' && what[0] <= '7') {
    draft.how.draft = &model;
    draft.how.reading = {mode, what[0] - '0'};
    check(can_read(model, draft.how.reading), "--draft {}: no layer of {} has integers that can be cut to {} bits",
          draft.name, run.model, what);
  } else {
    check(std::filesystem::is_directory(what),
          "--draft {}: expected off, auto, lookup, a number of bits from 1 to 7, activations, or a model's folder; "
          "\"{}\" "
          "is none of these",
          draft.name, what);
    check_same_tokens(what, run.model);
    draft.folder = what;
    draft.copy = model.make_draft(Checkpoint::open(what));
    draft.how.draft = draft.copy.get();
    draft.how.reading = mode;
  }
}

}  // namespace

void add_draft(CLI::App& verb, DraftOptions& o) {
  verb.add_option(
      "--draft", o.draft,
      "What guesses tokens that the model then verifies, without changing the answer: off (the default), "
      "auto, lookup, so many high bits of the model's codes (4, 4:a8), or the folder of the same model in a "
      "smaller format; joined by +");
  verb.add_option("--drafts", o.most, "Tokens guessed at once, at most")->check(CLI::Range(1, 64));
  verb.add_flag("--fixed-drafts", o.fixed, "Always guess that many, instead of as many as pay");
}

Draft open_draft(const DraftOptions& o, Runner& model, const RunOptions& run) {
  Draft draft;
  draft.name = o.draft;
  draft.how.most = o.most;
  draft.how.adapt = !o.fixed;
  if (o.draft == "off") return draft;
  if (o.draft == "auto") {
    draft.how.lookup = true;
    const Reading view(parse_activations(run.activations), 4);
    if (can_read(model, view)) draft.how.draft = &model, draft.how.reading = view;
    return draft;
  }
  for (const std::string& part : parts_of(o.draft)) {
    if (part == "lookup")
      draft.how.lookup = true;
    else
      add_part(part, model, run, draft);
  }
  return draft;
}

}  // namespace fidelio::app
