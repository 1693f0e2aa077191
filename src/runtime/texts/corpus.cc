#include "runtime/texts/corpus.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/foreign/json.h"
#include "core/foreign/lines.h"
#include "core/hash.h"
#include "runtime/texts/bundled.h"
#include "text/conversation.h"
#include "text/shingles.h"

namespace fidelio {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;  // templates print the keys of a message in the order in which they came

bool is_domain(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
}

// Returns what is said in a conversation: the texts of its messages and the arguments of calls, but no system's prompt.
std::string said_in(const json& messages) {
  std::string text;
  const auto add = [&](const json& object, const char* key) {
    if (object.is_object() && object.contains(key) && object[key].is_string())
      text += object[key].get_ref<const std::string&>() + "\n";
  };
  for (const json& message : messages) {
    const std::string role = message.value("role", "");
    if (role == "system" || role == "developer") continue;
    add(message, "content");
    if (message.contains("content") && message["content"].is_array())
      for (const json& part : message["content"]) add(part, "text");
    if (message.contains("tool_calls") && message["tool_calls"].is_array())
      for (const json& call : message["tool_calls"])
        if (call.is_object() && call.contains("function")) add(call["function"], "arguments");
  }
  return text;
}

class Reader {
 public:
  Reader(const Tokenizer& tokenizer, const ChatTemplate* chat, int64_t context, Shingles shingles,
         int64_t most_shingles)
      : tokenizer_(tokenizer),
        chat_(chat),
        context_(static_cast<size_t>(context)),
        lead_(tokenizer.leading_ids()),
        with_shingles_(shingles == Shingles::kept),
        most_shingles_(most_shingles) {
    check(lead_.size() + 1 < context_, "a context of {} tokens has no room beside the {} that begin every text",
          context, lead_.size());
  }

  void read(const TextSource& source) {
    const size_t before = corpus_.documents.size();
    const auto left_out = corpus_.without_template + corpus_.too_short;
    if (!fs::is_directory(source.path)) {
      read_file(source.path, source.domain, fs::path(source.path).filename().string());
    } else {
      std::set<std::string> paths;
      for (const auto& entry : fs::recursive_directory_iterator(source.path))
        if (entry.is_regular_file()) paths.insert(entry.path().string());
      for (const std::string& path : paths) {
        const fs::path within = fs::relative(path, source.path);
        const std::string folder = within.has_parent_path() ? within.begin()->string() : "";
        read_file(path, source.domain.empty() && is_domain(folder) ? folder : source.domain, within.string());
      }
    }
    check(corpus_.documents.size() > before || corpus_.without_template + corpus_.too_short > left_out,
          "{} holds no text{}", source.path,
          no_text_ == 0 ? "" : " but bytes of zero, as pictures do and UTF-16: text is expected in UTF-8");
  }

  Corpus finish(const std::vector<std::string>& sources) {
    check(!corpus_.documents.empty() || corpus_.too_short == 0,
          "{}: no document has {} tokens or more, the fewest that are used; give longer ones", fmt::join(sources, ", "),
          kShortestDocument);
    corpus_.sha256 = hash_.hex();
    return std::move(corpus_);
  }

 private:
  void read_file(const std::string& path, const std::string& domain, const std::string& name) {
    const std::string text = read_text(path);
    if (text.find('\0') != std::string::npos) {  // a picture, say, beside texts in a folder
      ++no_text_;
      return;
    }
    hash_.update(text);
    if (path.ends_with(".jsonl")) return read_lines(path, text, domain, name);
    const bool several = text.find('\f') != std::string::npos;
    int64_t number = 0;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\f', begin), text.size());
      const std::string_view part(text.data() + begin, end - begin);
      begin = end + 1;
      ++number;
      if (part.find_first_not_of(" \t\r\n") == std::string_view::npos) continue;
      add(part, domain.empty() ? "text" : domain, several ? fmt::format("{}, part {}", name, number) : name, false);
    }
  }

  void read_lines(const std::string& path, const std::string& text, const std::string& domain,
                  const std::string& name) {
    for_each_line(text, [&](std::string_view line, int64_t number) {
      const std::string where = fmt::format("{} line {}", path, number);
      const json record = parse_ordered_json(line, where);
      try {
        read_record(record, domain, fmt::format("{}, line {}", name, number));
      } catch (const Error& e) {
        throw Error("{}: {}", where, e.what());
      }
    });
  }

  void read_record(const json& record, std::string domain, std::string name) {
    const auto text_of = [&](const char* key) {
      return record.is_object() && record.contains(key) && record[key].is_string() ? record[key].get<std::string>()
                                                                                   : std::string();
    };
    const bool conversation = record.is_object() && record.contains("messages");
    if (domain.empty()) domain = text_of("domain");
    if (domain.empty()) domain = conversation ? "chat" : "text";
    check(is_domain(domain), "a domain is a name of letters, digits, - _ and ., not \"{}\"", domain);
    if (const std::string id = text_of("id"); !id.empty()) name = id;
    if (conversation) {
      if (chat_ == nullptr) {
        ++corpus_.without_template;
        return;
      }
      const std::string text = render_wire_record(*chat_, record);
      return add(text, domain, name, true, token_spans(text, spans_of_arguments(*chat_, record, text)),
                 said_in(record["messages"]));
    }
    if (record.is_object() && record.contains("ids")) return add_ids(record, domain, name);
    const bool has_text = record.is_object() && record.contains("text") && record["text"].is_string();
    check(has_text || (!text_of("prompt").empty() && !text_of("completion").empty()),
          "expected an object with \"text\", \"messages\", \"ids\" or \"prompt\" and \"completion\"");
    add(has_text ? text_of("text") : text_of("prompt") + text_of("completion"), domain, name, false);
  }

  // Returns the tokens of spans of bytes. A token belongs to a span if the text up to its end reaches into the span.
  std::vector<TokenSpan> token_spans(const std::string& text, const std::vector<ByteSpan>& spans) const {
    const auto tokens_to = [&](size_t end) {
      return std::ssize(tokenizer_.encode(std::string_view(text).substr(0, end), false));
    };
    std::vector<TokenSpan> found;
    for (const ByteSpan& s : spans)
      if (const TokenSpan span{tokens_to(s.begin), tokens_to(s.end)}; span.begin < span.end) found.push_back(span);
    return found;
  }

  void add_ids(const json& record, const std::string& domain, const std::string& name) {
    const json& list = record["ids"];
    const auto is_id = [&](const json& id) {
      return id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < tokenizer_.vocab_size();
    };
    check(list.is_array() && std::all_of(list.begin(), list.end(), is_id),
          "\"ids\" are not a list of this model's tokens: another model wrote them, or the file is damaged");
    std::vector<int32_t> ids = list.get<std::vector<int32_t>>();
    ids.resize(std::min(ids.size(), context_));
    const bool counts = record.contains("given") && record["given"].is_number_integer();
    const int64_t given = counts ? record["given"].get<int64_t>() : 0;
    check(given >= 0, "\"given\" is {}, expected how many of the ids are a prompt", given);
    if (std::ssize(ids) - given < kShortestDocument) {
      ++corpus_.too_short;
      return;
    }
    corpus_.documents.push_back(document_of_ids(name, domain, std::move(ids), given));
  }

  void add(std::string_view text, const std::string& domain, const std::string& name, bool conversation,
           std::vector<TokenSpan> apart = {}, std::string_view said = {}) {
    std::vector<int32_t> ids = tokenizer_.encode(text, false);
    if (static_cast<int64_t>(ids.size()) < kShortestDocument) {
      ++corpus_.too_short;
      return;
    }
    Document document{domain, name, sha256_hex(text), {}};
    document.apart = std::move(apart);
    if (conversation) {
      ids.resize(std::min(ids.size(), context_));
      document.ids = std::move(ids);
    } else {
      for (size_t begin = 0; begin < ids.size();) {
        document.ids.insert(document.ids.end(), lead_.begin(), lead_.end());
        const size_t end = std::min(ids.size(), begin + context_ - lead_.size());
        document.ids.insert(document.ids.end(), ids.begin() + static_cast<int64_t>(begin),
                            ids.begin() + static_cast<int64_t>(end));
        begin = end;
      }
    }
    corpus_.documents.push_back(std::move(document));
    if (with_shingles_) keep_shingles(shingles_of(conversation ? said : text));
  }

  // Keeps the newest document's shingles. If there are too many in all, every second one is dropped, by a bit of its
  // hash, here and in later documents.
  void keep_shingles(std::vector<uint64_t> shingles) {
    uint64_t& mask = corpus_.shingle_mask;
    const auto thin = [&](std::vector<uint64_t>& all) {
      std::erase_if(all, [&](uint64_t hash) { return (hash & mask) != 0; });
      all.shrink_to_fit();
    };
    if (mask != 0) thin(shingles);
    shingles_ += std::ssize(shingles);
    corpus_.documents.back().shingles = std::move(shingles);
    while (shingles_ > most_shingles_) {
      mask = 2 * mask + 1;
      shingles_ = 0;
      for (Document& d : corpus_.documents) thin(d.shingles), shingles_ += std::ssize(d.shingles);
    }
  }

  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_;
  size_t context_;
  std::vector<int32_t> lead_;
  bool with_shingles_;
  int64_t most_shingles_, shingles_ = 0;  // shingles_ counts those that are kept
  Sha256 hash_;
  Corpus corpus_;
  int64_t no_text_ = 0;  // files that hold no text
};

}  // namespace

std::string ids_record(const std::string& id, const std::string& domain, std::span<const int32_t> ids, int64_t given,
                       const Tokenizer& tokenizer) {
  return json{{"id", id},
              {"domain", domain},
              {"given", given},
              {"ids", std::vector<int32_t>(ids.begin(), ids.end())},
              {"answer", tokenizer.decode(ids.subspan(static_cast<size_t>(given)))}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Document document_of_ids(const std::string& name, const std::string& domain, std::vector<int32_t> ids, int64_t given) {
  Document document{domain, name, sha256_hex(fmt::format("{} {}", given, fmt::join(ids, " "))), std::move(ids)};
  document.given = given;
  return document;
}

TextSource parse_text_source(const std::string& argument) {
  if (text_exists(argument)) return {argument, ""};
  const size_t colon = argument.rfind(':');
  if (colon == std::string::npos) return {argument, ""};  // reading it will say that it does not exist
  const TextSource source{argument.substr(0, colon), argument.substr(colon + 1)};
  if (!text_exists(source.path)) return {argument, ""};
  check(is_domain(source.domain), "{}: a domain is a name of letters, digits, - _ and ., not \"{}\"", argument,
        source.domain);
  return source;
}

std::vector<std::string> Corpus::domains() const {
  std::set<std::string> all;
  for (const Document& d : documents) all.insert(d.domain);
  return {all.begin(), all.end()};
}

Corpus read_corpus(const std::vector<std::string>& sources, const Tokenizer& tokenizer, const ChatTemplate* chat,
                   int64_t context, Shingles shingles, int64_t most_shingles) {
  check(!sources.empty(), "no text file was given");
  check(context >= 2, "a context of {} tokens is too short, the least is 2", context);
  Reader reader(tokenizer, chat, context, shingles, most_shingles);
  for (const std::string& source : sources) reader.read(parse_text_source(source));
  return reader.finish(sources);
}

std::vector<Document> cut_into_passages(const std::vector<Document>& documents, int64_t context, int64_t windows) {
  std::vector<Document> passages;
  const auto length = static_cast<size_t>(context * windows);
  for (const Document& d : documents) {
    if (d.ids.size() < 2 * static_cast<size_t>(context)) {
      passages.push_back(d);
      continue;
    }
    for (size_t begin = 0; begin < d.ids.size(); begin += length) {
      Document passage{d.domain, d.name, d.sha256, {}, static_cast<int64_t>(begin), true};
      passage.ids.assign(d.ids.begin() + static_cast<int64_t>(begin),
                         d.ids.begin() + static_cast<int64_t>(std::min(d.ids.size(), begin + length)));
      if (static_cast<int64_t>(passage.ids.size()) >= kShortestDocument) passages.push_back(std::move(passage));
    }
  }
  return passages;
}
}  // namespace fidelio
