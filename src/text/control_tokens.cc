#include "text/control_tokens.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"

namespace fidelio {
namespace {

using Json = nlohmann::ordered_json;
using Matcher = tokenization::AddedTokens::Matcher;

constexpr std::string_view kBegin = "\U000F0000", kEnd = "\U000F0001";

bool is_blank(const std::string& text) { return text.find_first_not_of(" \t\r\n\v\f") == std::string::npos; }

// Returns the tokens in a text, leftmost and longest first, none inside another.
std::vector<Matcher::Match> tokens_in(const Matcher& matcher, std::string_view text) {
  std::vector<Matcher::Match> all, apart;
  matcher.find(text, all);
  size_t at = 0;
  for (auto match = all.rbegin(); match != all.rend(); ++match) {
    if (match->begin < at) continue;
    at = match->end;
    apart.push_back(*match);
  }
  return apart;
}

}  // namespace

ControlTokens::ControlTokens(const Tokenizer& tokenizer, const ChatTemplate& chat)
    : tokenizer_(tokenizer), newline_(tokenizer.encode("\n", false)) {
  const std::string written = chat.literal_text();
  const auto& listed = tokenizer.chat_control_tokens();
  for (const auto& [id, text] : tokenizer.added_tokens()) {
    added_.insert(text, id);
    const bool named = listed ? std::find(listed->begin(), listed->end(), text) != listed->end()
                              : !is_blank(text) && written.find(text) != std::string::npos;
    if (named || tokenizer.is_special(id)) control_.insert(text, id);
  }
  added_.finish();
  control_.finish();
}

std::string ControlTokens::mark(const std::string& text) const {
  std::string plain = text;
  for (const std::string_view mark : {kBegin, kEnd})
    for (size_t at = 0; (at = plain.find(mark, at)) != std::string::npos;) plain.erase(at, mark.size());
  std::string out;
  size_t done = 0;
  for (const Matcher::Match& match : tokens_in(control_, plain)) {
    out.append(plain, done, match.begin - done).append(kBegin);
    out.append(plain, match.begin, match.end - match.begin).append(kEnd);
    done = match.end;
  }
  return out.append(plain, done);
}

Json ControlTokens::marked(const Json& value) const {
  if (value.is_string()) return mark(value.get_ref<const std::string&>());
  if (!value.is_structured()) return value;
  Json result = value.is_array() ? Json::array() : Json::object();
  for (const auto& [key, item] : value.items()) {
    if (value.is_array())
      result.push_back(marked(item));
    else
      result[mark(key)] = marked(item);
  }
  return result;
}

Json ControlTokens::marked_messages(const Json& messages) const {
  Json result = marked(messages);
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    if (!message.is_object() || !message.contains("tool_calls") || !message["tool_calls"].is_array()) continue;
    const Json& calls = message["tool_calls"];
    for (size_t c = 0; c < calls.size(); ++c) {
      if (!calls[c].is_object() || !calls[c].contains("function")) continue;
      const Json& function = calls[c]["function"];
      if (function.is_object() && function.contains("arguments") && function["arguments"].is_string())
        result[i]["tool_calls"][c]["function"]["arguments"] = function["arguments"];
    }
  }
  return result;
}

// Encodes the piece after a newline and removes the newline's ids again, as some tokenizers add a space at the
// beginning of a text.
std::vector<int32_t> ControlTokens::encode_piece(std::string_view piece, bool as_text) const {
  const auto encode = [&](const std::string& text) {
    return as_text ? tokenizer_.encode_as_text(text) : tokenizer_.encode(text, false);
  };
  std::vector<int32_t> ids = encode("\n" + std::string(piece));
  if (ids.size() < newline_.size() || !std::equal(newline_.begin(), newline_.end(), ids.begin()))
    return encode(std::string(piece));
  ids.erase(ids.begin(), ids.begin() + std::ssize(newline_));
  return ids;
}

std::vector<int32_t> ControlTokens::encode(std::string_view rendered) const {
  std::vector<int32_t> ids;
  bool first = true;
  const auto add = [&](std::string_view piece) {
    if (!piece.empty()) {
      const std::vector<int32_t> more = first ? tokenizer_.encode(piece, false) : encode_piece(piece, false);
      ids.insert(ids.end(), more.begin(), more.end());
    }
    first = false;
  };
  while (!rendered.empty()) {
    const size_t begin = std::min({rendered.find(kBegin), rendered.find(kEnd), rendered.size()});
    add(rendered.substr(0, begin));
    if (begin == rendered.size()) break;
    const bool opens = rendered.substr(begin).starts_with(kBegin);
    rendered.remove_prefix(begin + kBegin.size());
    const size_t end = opens ? std::min(rendered.find(kEnd), rendered.find(kBegin)) : std::string_view::npos;
    if (end == std::string_view::npos || !rendered.substr(end).starts_with(kEnd)) continue;
    const std::string token(rendered.substr(0, end));
    const auto inside = tokens_in(added_, token);
    if (inside.size() != 1 || inside[0].begin != 0 || inside[0].end != token.size()) continue;
    const std::vector<int32_t> more = encode_piece(token, true);
    check(std::find(more.begin(), more.end(), inside[0].id) == more.end(),
          "a message holds {}, of which this tokenizer makes the control token even where it is written as text",
          token);
    ids.insert(ids.end(), more.begin(), more.end());
    rendered.remove_prefix(end + kEnd.size());
  }
  return ids;
}

}  // namespace fidelio
