// This file reads texts as documents. Positions of one document are alike, so a document is the unit that is sampled:
// sets are split by document, and intervals are computed over documents (eval/statistics/clusters.h). Documents of
// one kind form a domain.
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
  std::string domain, name, sha256;  // sha256 is the hash of the text, of a conversation as the template renders it
  // These are the tokens as the model is served with them. Each window of `context` tokens begins with what the
  // tokenizer puts before a text (a BOS token, where the family has one). A conversation is one window, whose special
  // tokens are those of the template.
  std::vector<int32_t> ids;
  int64_t begin = 0;               // the place of these ids in the whole document
  bool passage = false;            // this is a part of a document, used as one because there are too few documents
  std::vector<TokenSpan> apart{};  // the arguments of the calls in a conversation that is whole
  int64_t given = 0;               // this many of the first ids are a prompt, which is read and not scored
  // These are the shingles of the whole document (text/shingles.h), if read_corpus() was asked for them. For a
  // conversation they are made from what is said in it, because the words of a template and the system's prompt are
  // the same in many conversations.
  std::vector<uint64_t> shingles = {};
};

// Returns an answer of a model as a line of a file of texts. It holds the ids as they were sampled, behind those of
// the prompt.
std::string ids_record(const std::string& id, const std::string& domain, std::span<const int32_t> ids, int64_t given,
                       const Tokenizer& tokenizer);
// Returns the document that such a line holds.
Document document_of_ids(const std::string& name, const std::string& domain, std::vector<int32_t> ids, int64_t given);

// A TextSource is an argument `DIR|FILE|JSONL[:domain]` of a command line. If the whole argument is a path that
// exists, it has no domain.
struct TextSource {
  std::string path, domain;
};
TextSource parse_text_source(const std::string& argument);

struct Corpus {
  std::vector<Document> documents;
  std::string sha256;            // the hash of the files' bytes, in the order given
  int64_t without_template = 0;  // conversations left out because the model has no chat template
  int64_t too_short = 0;         // documents left out because they have fewer than kShortestDocument tokens
  // Documents keep the shingles whose hash has none of these bits. That is all of them, or one of two, of four and so
  // on (kMostShingles).
  uint64_t shingle_mask = 0;
  std::vector<std::string> domains() const;  // the names in alphabetical order
};
inline constexpr int64_t kShortestDocument = 16;
// This limits shingles to 64 MiB, which is as many as 50 MB of text have. Of more text a share of them is kept. A
// share p that is estimated from n of them has a standard error of sqrt(p (1 - p) / n), which is .02 for half of a
// document of 1,000 words at 200 MB.
inline constexpr int64_t kMostShingles = int64_t{1} << 23;
enum class Shingles : uint8_t { none, kept };

// Reads sources as documents.
//   - In a folder, every regular file in it and below it without zero bytes is read, in the order of the paths. Its
//     domain is the first folder of its path within (a/chat/x.txt of a is of domain "chat"), else "text".
//   - In a file that ends in .jsonl, every line is a document. It is an object with "text"; with "messages", read as a
//     server reads them with the line's "tools" and "chat_template_kwargs" and rendered by the chat template; with
//     "prompt" and "completion"; or with "ids" (ids_record). Its "domain" and "id" are used. Without a "domain" it is
//     "chat" for messages, else "text".
//   - In any other file, the parts between form feeds (U+000C) are documents. A file without one is one document.
// A domain given after the path holds for all of it. Throws Error naming file and line.
Corpus read_corpus(const std::vector<std::string>& sources, const Tokenizer& tokenizer, const ChatTemplate* chat,
                   int64_t context, Shingles shingles = Shingles::none, int64_t most_shingles = kMostShingles);

// Cuts documents of at least two windows of `context` tokens into passages of `windows` windows. Shorter documents
// stay as they are.
std::vector<Document> cut_into_passages(const std::vector<Document>& documents, int64_t context, int64_t windows);

}  // namespace fidelio
