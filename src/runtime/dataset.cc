#include "runtime/dataset.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/foreign/json.h"
#include "core/foreign/lines.h"
#include "core/hash.h"
#include "runtime/page_table.h"
#include "runtime/texts/bundled.h"
#include "text/conversation.h"

namespace fidelio {
namespace {

using json = nlohmann::ordered_json;  // templates print the keys of a message in the order in which they came

std::vector<std::vector<int32_t>> text_windows(const std::string& text, const Tokenizer& tokenizer, int64_t context) {
  const std::vector<int32_t> ids = tokenizer.encode(text, false);
  std::vector<std::vector<int32_t>> windows;
  for (size_t begin = 0; begin < ids.size(); begin += static_cast<size_t>(context))
    windows.emplace_back(
        ids.begin() + static_cast<int64_t>(begin),
        ids.begin() + static_cast<int64_t>(std::min(ids.size(), begin + static_cast<size_t>(context))));
  return windows;
}

std::string line_text(const json& line, const ChatTemplate* chat) {
  if (line.is_object() && line.contains("text") && line["text"].is_string()) return line["text"];
  if (line.is_object() && line.contains("messages")) {
    check(chat != nullptr, "it holds \"messages\", but the model has no chat template");
    return render_wire_record(*chat, line);
  }
  if (line.is_object() && line.contains("prompt") && line.contains("completion") && line["prompt"].is_string() &&
      line["completion"].is_string())
    return line["prompt"].get<std::string>() + line["completion"].get<std::string>();
  throw Error("expected an object with \"text\", \"messages\" or \"prompt\" and \"completion\"");
}

std::vector<std::vector<int32_t>> jsonl_sequences(const std::string& path, const std::string& text,
                                                  const Tokenizer& tokenizer, const ChatTemplate* chat,
                                                  int64_t context) {
  std::vector<std::vector<int32_t>> sequences;
  for_each_line(text, [&](std::string_view line, int64_t number) {
    const std::string where = fmt::format("{} line {}", path, number);
    const json parsed = parse_ordered_json(line, where);
    std::vector<int32_t> ids;
    try {
      ids = tokenizer.encode(line_text(parsed, chat), false);
    } catch (const Error& e) {
      throw Error("{}: {}", where, e.what());
    }
    ids.resize(std::min(ids.size(), static_cast<size_t>(context)));
    if (ids.size() > 1) sequences.push_back(std::move(ids));
  });
  return sequences;
}

}  // namespace

std::vector<std::vector<int32_t>> spread_evenly(std::span<const std::vector<int32_t>> sequences, int64_t tokens) {
  int64_t total = 0;
  for (const auto& s : sequences) total += static_cast<int64_t>(s.size());
  if (total <= tokens) return {sequences.begin(), sequences.end()};
  std::vector<std::vector<int32_t>> chosen;
  double due = 0;
  for (const auto& s : sequences) {
    due += static_cast<double>(s.size()) * static_cast<double>(tokens) / static_cast<double>(total);
    if (due < static_cast<double>(s.size())) continue;
    due -= static_cast<double>(s.size());
    chosen.push_back(s);
  }
  if (chosen.empty()) {
    const auto fits = std::find_if(sequences.begin(), sequences.end(),
                                   [&](const auto& s) { return static_cast<int64_t>(s.size()) <= tokens; });
    check(fits != sequences.end(),
          "{} tokens of a text were asked for, whose sequences have {}: ask for one sequence at least, or for shorter "
          "ones",
          tokens, sequences.front().size());
    chosen.push_back(*fits);
  }
  return chosen;
}

Dataset read_dataset(const std::vector<std::string>& files, const Tokenizer& tokenizer, const ChatTemplate* chat,
                     const DatasetOptions& options) {
  check(!files.empty(), "no text file was given");
  check(options.context >= 2, "a context of {} tokens is too short, the least is 2", options.context);
  Dataset data;
  Sha256 hash;
  for (const std::string& path : files) {
    const std::string text = read_text(path);
    hash.update(text);
    auto sequences = path.ends_with(".jsonl") ? jsonl_sequences(path, text, tokenizer, chat, options.context)
                                              : text_windows(text, tokenizer, options.context);
    check(!sequences.empty(), "{} holds no text", path);
    if (options.max_tokens > 0)
      sequences = spread_evenly(sequences, options.max_tokens / static_cast<int64_t>(files.size()));
    for (auto& s : sequences) {
      data.tokens += static_cast<int64_t>(s.size());
      data.sequences.push_back(std::move(s));
    }
  }
  data.sha256 = hash.hex();
  return data;
}

std::vector<PackedBatch> pack_batches(const std::vector<std::vector<int32_t>>& sequences, int64_t rows, int64_t pages) {
  std::vector<PackedBatch> batches;
  int64_t next_page = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto length = static_cast<int64_t>(sequences[i].size());
    const int64_t needed = PageTable::pages_for(length);
    check(length <= rows && needed <= pages,
          "a sequence of {} tokens does not fit a batch of {} rows and {} cache pages", length, rows, pages);
    if (batches.empty() || batches.back().batch.rows() + length > rows || next_page + needed > pages) {
      batches.emplace_back();
      next_page = 0;
    }
    std::vector<int32_t> own(static_cast<size_t>(needed));
    for (int32_t& page : own) page = static_cast<int32_t>(next_page++);
    batches.back().batch.append(sequences[i], 0, own, 0, RowKind::prompt);
    batches.back().sequences.push_back(static_cast<int64_t>(i));
  }
  return batches;
}

}  // namespace fidelio
