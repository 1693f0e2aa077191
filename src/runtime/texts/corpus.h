// Texts as documents. A document is what is drawn when text is: positions of one are alike, so sets are split by
// document and intervals are made of documents (eval/statistics/clusters.h). Documents of one kind form a domain.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/texts/token_span.h"
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio {

struct Document {
  std::string domain, name, sha256;  // of its text's bytes, a conversation's as the template renders it
  // As the model is served with it: each window of `context` tokens begins with what the tokenizer puts before a text
  // (a BOS token, where the family has one). A conversation is one window, whose special tokens are the template's.
  std::vector<int32_t> ids;
  int64_t begin = 0;               // of these ids in the whole document's, of which they may be a part
  bool passage = false;            // such a part, taken for a document because there are too few
  std::vector<TokenSpan> apart{};  // of a conversation, whole: the arguments of its calls
  int64_t given = 0;               // so many of the first ids are a prompt, which is read and not scored
  // The shingles of the whole document (text/shingles.h), where read_corpus() was asked for them. Those of a conversation
  // are of what is said in it: a template's words and a system's prompt are alike in many.
  std::vector<uint64_t> shingles = {};
};

// Writes an answer of a model as a line of a file of texts: its ids as they were sampled, behind those of the prompt.
std::string ids_record(const std::string& id, const std::string& domain, std::span<const int32_t> ids, int64_t given,
                       const Tokenizer& tokenizer);
// The document that such a line is.
Document document_of_ids(const std::string& name, const std::string& domain, std::vector<int32_t> ids, int64_t given);

// `DIR|FILE|JSONL[:domain]` of a command line. A path that exists as it stands has no domain after it.
struct TextSource {
  std::string path, domain;
};
TextSource parse_text_source(const std::string& argument);

struct Corpus {
  std::vector<Document> documents;
  std::string sha256;            // of the files' bytes, in the order given
  int64_t without_template = 0;  // conversations left out, because the model has no chat template
  int64_t too_short = 0;         // documents left out, of fewer than kShortestDocument tokens
  // The documents keep those shingles whose hash has none of these bits: all of them, or one of two, four ...
  // (kMostShingles).
  uint64_t shingle_mask = 0;
  std::vector<std::string> domains() const;  // in alphabetical order
};
inline constexpr int64_t kShortestDocument = 16;
// 64 MiB of shingles, which is as many as 50 MB of text have. Of more text a share of them is kept: a share p that is
// read from n of them has a standard error of sqrt(p (1 - p) / n), .02 for half of a document of 1,000 words at 200 MB.
inline constexpr int64_t kMostShingles = int64_t{1} << 23;
enum class Shingles : uint8_t { none, kept };

// What documents are:
//   - of a folder every regular file in it and below it that has text's bytes, in the order of their paths, its domain
//     the folder's within (a/chat/x.txt of a is of domain "chat"), else "text";
//   - of a file ending in .jsonl every line, an object with "text", "messages" (read as a server reads them, with the
//     line's "tools" and "chat_template_kwargs", and rendered by the chat template), "prompt" and "completion", or "ids"
//     (ids_record), whose "domain" and "id" are heeded; its domain otherwise "chat" for messages, else "text";
//   - of any other file the parts between form feeds (U+000C); without one the file is one document.
// A domain that is named after the path holds for all of it. Throws Error naming file and line.
Corpus read_corpus(const std::vector<std::string>& sources, const Tokenizer& tokenizer, const ChatTemplate* chat,
                   int64_t context, Shingles shingles = Shingles::none, int64_t most_shingles = kMostShingles);

// Cuts documents of at least two windows of `context` tokens into passages of `windows` of them; what is shorter stays.
std::vector<Document> cut_into_passages(const std::vector<Document>& documents, int64_t context, int64_t windows);

}  // namespace fidelio
