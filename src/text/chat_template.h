// This file loads and renders the chat template of a checkpoint. It also reads the ids that end the model's answers,
// and the sampling settings that its authors recommend.
//
// A template is searched in the places that transformers uses: `chat_template.jinja`, else `chat_template` in
// tokenizer_config.json (a string, or a list of {name, template}), else in a processor's chat_template.json, and in
// `additional_chat_templates/NAME.jinja`. If there are several, "tool_use" is used where tools are given (if it
// exists), and "default", which is the name of chat_template.jinja, otherwise. Rendered text already holds the BOS
// token where the template writes one, so it must be tokenised without adding special tokens again.
#pragma once
#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/foreign/text_files.h"
#include "text/jinja/jinja.h"

namespace fidelio {

struct ChatMessage {
  std::string role;
  std::string content;
};

struct ChatOptions {
  bool add_generation_prompt = true;
  std::optional<bool> enable_thinking;  // If absent, the template's own default holds.
  std::string tools_json;               // It is a JSON array of tools, or empty.
};

// A TextMark changes a text that a user wrote before the template gets it (text/control_tokens.h).
using TextMark = std::function<std::string(const std::string&)>;

class ChatTemplate {
 public:
  using Clock = std::function<std::tm()>;

  // Returns nothing where the checkpoint has no chat template. Throws Error naming the file when it has a malformed
  // one.
  static std::optional<ChatTemplate> load(const TextFiles& files);
  // `special_tokens` are variables such as bos_token and eos_token. Throws Error with the line when `source` is
  // malformed.
  explicit ChatTemplate(std::string_view source, std::vector<std::pair<std::string, std::string>> special_tokens = {});

  std::string render(std::span<const ChatMessage> messages, const ChatOptions& options = {}) const;
  // Renders `messages`, an array of objects that may carry anything the template reads (tool_calls, reasoning_content,
  // list content ...). `extra` is an object of further variables (add_generation_prompt, tools, enable_thinking, ...).
  // Both are ordered_json, because templates print the keys of tools in the order they came in. Throws Error when the
  // template refuses the messages or exceeds jinja::Limits.
  std::string render_json(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& extra) const;
  // Renders a conversation in OpenAI's wire form, where the arguments of calls are JSON texts. Most templates want them
  // as objects, in which numbers keep their digits here. A template that cannot read objects, or that prints one as
  // Python would, is given the texts. `mark`, if there is one, is applied to the texts inside arguments; the caller
  // applies it to all other texts.
  std::string render_wire(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& extra,
                          const TextMark& mark = {}) const;

  // Sets the template that is used where tools are given. Throws Error as the constructor does.
  void set_with_tools(std::string_view source) { with_tools_.emplace(source), with_tools_source_ = source; }
  const std::string& source() const { return source_; }  // This is the source of the template without tools.
  std::string literal_text() const;  // This returns all text that the templates write themselves, separated by U+0000.
  // Tells whether the template mentions tools somewhere.
  bool shows_tools() const { return with_tools_ || source_.find("tools") != std::string::npos; }
  void set_clock(Clock clock) { clock_ = std::move(clock); }  // The default clock is local time.

 private:
  std::string render_values(jinja::Value messages, const nlohmann::ordered_json& extra) const;

  std::string source_, with_tools_source_;
  jinja::Template template_;
  std::optional<jinja::Template> with_tools_;
  jinja::Variables variables_;
  Clock clock_;
};

// Returns all templates by name. The result is empty where there is none; otherwise "default" is among them.
std::map<std::string, std::string> chat_templates(const TextFiles& files);
// Returns the names of the separate files that hold templates: "chat_template.json",
// "additional_chat_templates/tool_use.jinja".
std::vector<std::string> chat_template_files(const TextFiles& files);

// Lists the places where a template was searched. A message that none was found shows it.
std::string chat_template_places(const TextFiles& files);

// Returns the ids after which generation stops, sorted and without duplicates. They are every eos_token_id (a number or
// a list) of generation_config.json and config.json (also of its text_config), the eos_token of the tokenizer's files
// as `id_of` resolves it, and the ends of ChatML, gpt-oss and Gemma 4 where a chat template writes them. The union is
// needed because files that name only one of several are common, and a model that ignores the others never stops.
std::vector<int32_t> stop_token_ids(const TextFiles& files,
                                    const std::function<std::optional<int32_t>(std::string_view)>& id_of);

// These are the settings of generation_config.json; settings that the file does not have are empty.
struct GenerationDefaults {
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;

  static GenerationDefaults load(const TextFiles& files);
};

}  // namespace fidelio
