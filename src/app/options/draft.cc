#include "app/options/draft.h"

#include <algorithm>
#include <filesystem>

#include "core/foreign/json.h"
#include "io/model_source.h"
#include "text/tokenizer/config.h"
#include "text/tokenizer/token_bytes.h"

namespace fidelio::app {
namespace {

constexpr std::string_view kPredictor = "mtp";

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

// The tokenizer.json of a .gguf file is made from its keys and may describe the same tokens in another text, some of
// which only fill up its vocabulary.
void check_same_tokens(const std::string& draft, const std::string& model) {
  const TextFiles a = open_text_files(draft), b = open_text_files(model);
  if (tokenizer_json(a) == tokenizer_json(b)) return;
  const std::vector<std::string> ours = bytes_of_tokens(Tokenizer::load(a)),
                                 theirs = bytes_of_tokens(Tokenizer::load(b));
  check(std::equal(ours.begin(), ours.begin() + std::min(std::ssize(ours), std::ssize(theirs)), theirs.begin()),
        "--draft {}: its tokenizer.json is not that of {}: its tokens mean others", draft, model);
}

// Returns a part without the activations after its colon, which go to `mode`.
std::string without_activations(const std::string& part, Activations& mode) {
  const size_t colon = part.rfind(':');
  const auto named = colon == std::string::npos ? std::nullopt : activations_named(part.substr(colon + 1));
  if (!named) return part;
  mode = *named;
  return part.substr(0, colon);
}

// Adds one part that is not lookup.
void add_part(const std::string& part, Runner& model, const RunOptions& run, Draft& draft) {
  check(draft.how.draft == nullptr, "--draft {}: one reading or folder, and lookup beside it", draft.name);
  Activations mode = parse_activations(run.activations);
  const std::string what = without_activations(part, mode);
  if (const auto named = activations_named(what)) {
    draft.how.draft = &model;
    draft.how.reading = *named;
  } else if (what == kPredictor) {
    draft.copy = model.make_predictor(Checkpoint::open(run.model));
    draft.how.draft = draft.copy.get();
    draft.how.reading = mode;
  } else if (is_high_bits(what)) {
    draft.how.draft = &model;
    draft.how.reading = {mode, what[0] - '0'};
    check(can_read(model, draft.how.reading), "--draft {}: no layer of {} has integers that can be cut to {} bits",
          draft.name, run.model, what);
  } else {
    check(std::filesystem::exists(what),
          "--draft {}: expected off, auto, lookup, mtp, a number of bits from 1 to 7, activations, or a model's folder "
          "or "
          ".gguf file; \"{}\" is none of these",
          draft.name, what);
    check_same_tokens(what, run.model);
    draft.folder = what;
    draft.copy = model.make_draft(Checkpoint::open(what));
    draft.how.draft = draft.copy.get();
    draft.how.reading = mode;
  }
}

// Returns the hash of weights that their file states, or computes it where the file states none.
std::string weights_of(const std::string& folder) {
  const Checkpoint checkpoint = Checkpoint::open(folder);
  return checkpoint.written_weights_sha256().empty() ? checkpoint.weights_sha256()
                                                     : checkpoint.written_weights_sha256();
}

std::vector<int32_t> head_tokens_of(const nlohmann::json& tokens, int64_t v, const std::string& file) {
  std::vector<int32_t> found;
  bool whole = tokens.is_array() && !tokens.empty();
  for (size_t i = 0; whole && i < tokens.size(); ++i) {
    const int64_t token = tokens[i].is_number_integer() ? tokens[i].get<int64_t>() : -1;
    whole = token < v && token > (found.empty() ? -1 : found.back());
    found.push_back(static_cast<int32_t>(token));
  }
  check(whole, "{}: \"head_tokens\": expected tokens from 0 to {}, ascending: the file is damaged; choose a draft anew",
        file, v - 1);
  return found;
}

}  // namespace

void add_draft(CLI::App& verb, DraftOptions& o) {
  CLI::Option* draft = verb.add_option(
      "--draft", o.draft,
      "Speculative decoding, which changes no answer: off (the default), auto (what `fidelio draft` chose), lookup "
      "(n-grams of the text), mtp (the model's own block that predicts a token more), 4 (only the top 4 bits of the "
      "weights; 4:a8 with 8-bit activations), or the folder or "
      ".gguf file of a smaller copy of the model; joined by +");
  verb.add_option("--drafts", o.most, "Tokens guessed at once, at most")->check(CLI::Range(1, 64))->needs(draft);
  verb.add_flag("--fixed-drafts", o.fixed, "Always guess that many, instead of as many as pay")->needs(draft);
}

bool is_predictor(const std::string& draft) { return draft == kPredictor; }
bool is_high_bits(const std::string& draft) { return draft.size() == 1 && draft[0] >= '1' && draft[0] <= '7'; }

void prepare_for_drafts(RunnerOptions& options, std::span<const std::string> drafts, const RunOptions& run, int64_t v) {
  int& bits = options.high_bits;
  for (std::string draft : drafts) {
    if (draft == "auto") {
      const auto chosen = chosen_draft(run.model, v);
      draft = chosen ? chosen->draft : "4";
    }
    for (const std::string& part : parts_of(draft)) {
      Activations mode{};
      const std::string what = without_activations(part, mode);
      if (what == kPredictor) options.predictor = true;
      if (!is_high_bits(what)) continue;
      check(bits == 0 || bits == what[0] - '0',
            "drafts of {} and of {} high bits: weights are packed so that they can be cut in one place; give them one "
            "by one",
            bits, what);
      bits = what[0] - '0';
    }
  }
}

Draft open_draft(const DraftOptions& o, Runner& model, const RunOptions& run) {
  Draft draft;
  draft.name = o.draft;
  draft.how.most = o.most;
  draft.how.adapt = !o.fixed;
  if (o.draft == "off") return draft;
  const bool automatic = o.draft == "auto";
  const std::optional<ChosenDraft> chosen = automatic ? chosen_draft(run.model, model.config().v) : std::nullopt;
  if (automatic && !chosen) {
    draft.how.lookup = true;
    const Reading view(parse_activations(run.activations), 4);
    if (can_read(model, view)) draft.how.draft = &model, draft.how.reading = view;
    return draft;
  }
  for (const std::string& part : parts_of(chosen ? chosen->draft : o.draft)) {
    if (part == "lookup")
      draft.how.lookup = true;
    else
      add_part(chosen && part == "copy" ? draft_folder(run.model) : part, model, run, draft);
  }
  if (chosen && draft.how.draft != nullptr && !chosen->head_tokens.empty()) {
    const Checkpoint weights = Checkpoint::open(draft.folder.empty() ? run.model : draft.folder);
    draft.how.draft->set_short_head(weights.linear(head_of(weights.config())), chosen->head_tokens);
    draft.how.reading.short_head = true;
  }
  return draft;
}

std::string draft_folder(const std::string& model) { return model + "/draft"; }
std::string draft_choice_file(const std::string& model) { return model + "/draft.json"; }

std::optional<ChosenDraft> chosen_draft(const std::string& folder, int64_t v) {
  const std::string file = draft_choice_file(folder);
  if (!std::filesystem::exists(file)) return std::nullopt;
  const nlohmann::json choice = read_json_object(file);
  const auto text = [&](const char* key) {
    const auto found = choice.find(key);
    check(found != choice.end() && found->is_string(), "{}: no \"{}\": the file is damaged; choose a draft anew", file,
          key);
    return found->get<std::string>();
  };
  // The folder may be a stranger's, so its choice may name only its own contents, never another folder of this machine.
  const std::string draft = text("draft");
  for (const std::string& part : parts_of(draft))
    check(
        part == "lookup" || part == "copy" || part == kPredictor || is_high_bits(part),
        "{}: \"draft\" is \"{}\": expected lookup, copy, mtp or a number of bits from 1 to 7, joined by +: the file is "
        "damaged; choose a draft anew",
        file, draft);
  const std::string remedy = "`fidelio draft` chooses one for these";
  check(text("weights_sha256") == weights_of(folder), "{}: the draft was chosen for other weights than those in {}: {}",
        file, folder, remedy);
  if (draft.find("copy") != std::string::npos) {
    const std::string copy = draft_folder(folder);
    check(std::filesystem::is_directory(copy), "{} names a copy, and there is no {}: {}", file, copy, remedy);
    check(text("copy_weights_sha256") == weights_of(copy), "{}: {} holds other weights than were measured: {}", file,
          copy, remedy);
  }
  ChosenDraft chosen{draft, {}};
  if (choice.contains("head_tokens")) chosen.head_tokens = head_tokens_of(choice["head_tokens"], v, file);
  return chosen;
}

}  // namespace fidelio::app
