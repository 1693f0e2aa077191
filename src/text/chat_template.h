// io: the chat template of a checkpoint, the ids that end its answers, and the sampling its authors recommend.
//
// Sources, as transformers reads them: `chat_template.jinja`, else `chat_template` in tokenizer_config.json (a string, or a
// list of {name, template}), else in a processor's chat_template.json, and `additional_chat_templates/NAME.jinja`.
// Of several "tool_use", if there is one, is used where tools are given and "default", which is chat_template.jinja's name,
// else. Rendered text already holds the BOS token where the template writes one: tokenise it without adding special tokens
// again.
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
  std::optional<bool> enable_thinking;  // absent: the template's own default
  std::string tools_json;               // a JSON array of tools, or empty
};

// A text of a user's as a template is given it (text/control_tokens.h).
using TextMark = std::function<std::string(const std::string&)>;

class ChatTemplate {
 public:
  using Clock = std::function<std::tm()>;

  // Nothing where the checkpoint has no chat template. Throws Error naming the file when it has a malformed one.
  static std::optional<ChatTemplate> load(const TextFiles& files);
  // `special_tokens` are variables such as bos_token and eos_token. Throws Error with the line when `source` is
  // malformed.
  explicit ChatTemplate(std::string_view source, std::vector<std::pair<std::string, std::string>> special_tokens = {});

  std::string render(std::span<const ChatMessage> messages, const ChatOptions& options = {}) const;
  // `messages` is an array of objects that may carry anything the template reads (tool_calls, reasoning_content, list
  // content ...); `extra` is an object of further variables (add_generation_prompt, tools, enable_thinking, ...).
  // ordered_json, because templates print the keys of tools in the order they came in. Throws Error when the template
  // refuses the messages or exceeds jinja::Limits.
  std::string render_json(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& extra) const;
  // The same of a conversation in OpenAI's wire form, where the arguments of calls are JSON texts. Most templates want them
  // as objects, in which numbers keep their digits. One that cannot read objects, or prints one as Python would, gets the
  // texts. `mark`, where there is one, is done to the texts inside of arguments; whoever calls does it to all others.
  std::string render_wire(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& extra,
                          const TextMark& mark = {}) const;

  // What messages are rendered with where tools are given. Throws Error as the constructor does.
  void set_with_tools(std::string_view source) { with_tools_.emplace(source), with_tools_source_ = source; }
  const std::string& source() const { return source_; }  // of the template without tools
  std::string literal_text() const;                      // all that the templates write themselves, apart by U+0000
  bool shows_tools() const {
    return with_tools_ || source_.find("tools") != std::string::npos;
  }                                                           // it has a word for them
  void set_clock(Clock clock) { clock_ = std::move(clock); }  // default: local time

 private:
  std::string render_values(jinja::Value messages, const nlohmann::ordered_json& extra) const;

  std::string source_, with_tools_source_;
  jinja::Template template_;
  std::optional<jinja::Template> with_tools_;
  jinja::Variables variables_;
  Clock clock_;
};

// All templates by name; empty where there is none, else "default" is among them.
std::map<std::string, std::string> chat_templates(const TextFiles& files);
// The files of their own that they stand in: "chat_template.json", "additional_chat_templates/tool_use.jinja".
std::vector<std::string> chat_template_files(const TextFiles& files);

// Says where a template was looked for, for messages that there is none.
std::string chat_template_places(const TextFiles& files);

// The ids after which generation stops: every eos_token_id (a number or a list) of generation_config.json and
// config.json, and the eos_token of the tokenizer's files as `id_of` resolves it. A union, because files that name one
// of several are common and a model that ignores the others never stops. Sorted, without duplicates.
std::vector<int32_t> stop_token_ids(const TextFiles& files,
                                    const std::function<std::optional<int32_t>(std::string_view)>& id_of);

// generation_config.json; what it does not say is empty.
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
