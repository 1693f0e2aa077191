#include "eval/tasks/task_data.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/foreign/foreign_text.h"
#include "core/foreign/json.h"
#include "core/foreign/lines.h"
#include "core/hash.h"

namespace fidelio {
namespace {

using nlohmann::json;

struct Line {
  json value;
  std::string where;  // for messages, for example "file line 3"
  size_t index;       // index of the item, from 0
};

std::string text_of(const Line& line, const json& object, const char* key) {
  check(object.is_object() && object.contains(key) && object[key].is_string(), "{}: expected a string \"{}\"",
        line.where, key);
  return object[key];
}
std::string text_of(const Line& line, const char* key) { return text_of(line, line.value, key); }

std::string stripped(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n"), last = text.find_last_not_of(" \t\r\n");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

std::string id_of(const Line& line) {
  for (const char* key : {"id", "ind", "unique_id", "task_id", "qID"})
    if (line.value.contains(key))
      return line.value[key].is_string() ? line.value[key].get<std::string>() : line.value[key].dump();
  return fmt::format("{}", line.index);
}

TaskItem item_of(const Line& line, std::string task, std::string question) {
  TaskItem item;
  item.id = id_of(line);
  item.task = std::move(task);
  item.question = std::move(question);
  return item;
}

void set_correct(const Line& line, TaskItem& item, int64_t correct) {
  check(correct >= 0 && correct < static_cast<int64_t>(item.choices.size()), "{}: the answer is choice {} of {}",
        line.where, correct, item.choices.size());
  item.correct = static_cast<int>(correct);
  item.answer = item.choices[static_cast<size_t>(correct)];
}

// Returns a label that is a number or a string of digits.
int64_t number_of(const Line& line, const char* key) {
  const json& value = line.value.contains(key) ? line.value[key] : json();
  if (value.is_number_integer()) return value;
  if (value.is_string()) {
    const auto& digits = value.get_ref<const std::string&>();
    const bool number =
        !digits.empty() && digits.size() <= 18 && digits.find_first_not_of("0123456789") == std::string::npos;
    if (number) return std::stoll(digits);
  }
  throw Error("{}: expected a number \"{}\"", line.where, key);
}

TaskItem read_native(const Line& line) {
  TaskItem item = item_of(line, text_of(line, "task"), text_of(line, "question"));
  item.answer = text_of(line, "answer");
  if (line.value.contains("choices")) item.choices = line.value["choices"].get<std::vector<std::string>>();
  return item;
}

// AI2's form is {"question": {"stem", "choices": [{"text", "label"}]}, "answerKey"}. The form of Hugging Face is
// {"question" or "question_stem", "choices": {"text": [...], "label": [...]}, "answerKey"}. OpenBookQA's stem is
// continued as it is; ARC's is put as a question.
TaskItem read_ai2(const Line& line) {
  const json& v = line.value;
  const bool nested = v.contains("question") && v["question"].is_object(), flat_book = v.contains("question_stem");
  const bool book =
      // OpenBookQA's ids look like "8-376", ARC's like "Mercury_7175875".
      flat_book || std::isdigit(static_cast<unsigned char>(id_of(line)[0]));
  const std::string stem =
      nested ? text_of(line, v["question"], "stem") : text_of(line, flat_book ? "question_stem" : "question");
  TaskItem item = item_of(line, book ? "openbookqa" : "arc", book ? stem : "Question: " + stem + "\nAnswer:");
  const json choices = nested ? v["question"].value("choices", json::array()) : v.value("choices", json::object());
  std::vector<std::string> labels;
  if (choices.is_array()) {
    for (const json& c : choices) {
      item.choices.push_back(text_of(line, c, "text"));
      labels.push_back(text_of(line, c, "label"));
    }
  } else {
    item.choices = choices.value("text", std::vector<std::string>());
    labels = choices.value("label", std::vector<std::string>());
  }
  const std::string key = text_of(line, "answerKey");
  set_correct(line, item, std::find(labels.begin(), labels.end(), key) - labels.begin());
  return item;
}

TaskItem read_piqa(const Line& line) {
  TaskItem item = item_of(line, "piqa", "Question: " + text_of(line, "goal") + "\nAnswer:");
  item.choices = {text_of(line, "sol1"), text_of(line, "sol2")};
  set_correct(line, item, number_of(line, "label"));
  return item;
}

// WinoGrande scores the text after the blank, given the text before it with each option in the blank's place.
TaskItem read_winogrande(const Line& line) {
  const std::string sentence = text_of(line, "sentence");
  const size_t blank = sentence.find('_');
  check(blank != std::string::npos, "{}: the sentence has no blank _", line.where);
  TaskItem item = item_of(line, "winogrande", sentence);
  item.choices.assign(2, stripped(sentence.substr(blank + 1)));
  item.contexts = {sentence.substr(0, blank) + text_of(line, "option1"),
                   sentence.substr(0, blank) + text_of(line, "option2")};
  set_correct(line, item, number_of(line, "answer") - 1);
  return item;
}

std::string replaced(const std::string& text, std::string_view from, std::string_view to) {
  std::string out;
  size_t begin = 0;
  for (size_t at; (at = text.find(from, begin)) != std::string::npos; begin = at + from.size())
    out.append(text, begin, at - begin).append(to);
  return out.append(text, begin);
}

// This cleans WikiHow's markup as the harness does: " [title]" becomes ". ", other text in brackets on one line is
// removed, and so is every blank that follows a blank.
std::string hellaswag_text(const std::string& given) {
  const std::string text = replaced(stripped(given), " [title]", ". ");
  std::string out;
  size_t end = 0;  // the first ']' or end of line at or after `at`
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '[') {
      if (end <= at) end = std::min(text.find_first_of("]\n\r", at), text.size());
      if (end < text.size() && text[end] == ']') {
        at = end;
        continue;
      }
    }
    if (text[at] != ' ' || out.empty() || out.back() != ' ') out += text[at];
  }
  return out;
}

TaskItem read_hellaswag(const Line& line) {
  std::string second = lower_case(text_of(line, "ctx_b"));
  if (!second.empty()) second[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(second[0])));
  TaskItem item =
      item_of(line, "hellaswag",
              hellaswag_text(text_of(line, "activity_label") + ": " + text_of(line, "ctx_a") + " " + second));
  for (const json& ending : line.value.at("endings")) item.choices.push_back(hellaswag_text(ending.get<std::string>()));
  set_correct(line, item, number_of(line, "label"));
  return item;
}

TaskItem read_boolq(const Line& line) {
  TaskItem item =
      item_of(line, "boolq", text_of(line, "passage") + "\nQuestion: " + text_of(line, "question") + "?\nAnswer:");
  item.choices = {"no", "yes"};
  const char* key = line.value.contains("answer") ? "answer" : "label";
  set_correct(
      line, item,
      line.value.contains(key) && line.value[key].is_boolean() ? line.value[key].get<bool>() : number_of(line, key));
  return item;
}

TaskItem read_gsm8k(const Line& line) {
  TaskItem item = item_of(line, "gsm8k", "Question: " + text_of(line, "question") + "\nAnswer:");
  item.worked_answer = text_of(line, "answer");
  const size_t marker = item.worked_answer.rfind("####");
  check(marker != std::string::npos, "{}: the answer has no \"#### number\"", line.where);
  item.answer = stripped(item.worked_answer.substr(marker + 4));
  std::erase(item.answer, ',');
  return item;
}

TaskItem read_math(const Line& line) {
  TaskItem item = item_of(line, "math", "Problem: " + text_of(line, "problem") + "\nAnswer:");
  item.answer = text_of(line, "answer");
  item.worked_answer = line.value.contains("solution") ? text_of(line, "solution") : "";
  return item;
}

// The question ends in "... Answer format: answer1/answer2/answer3/answer4" and the answer is for example "answer3".
// The answer is found by searching for the words of that format.
TaskItem read_instruction(const Line& line) {
  TaskItem item = item_of(line, "instruction-form", text_of(line, "instruction"));
  item.answer = text_of(line, "answer");
  return item;
}

struct Layout {
  std::vector<const char*> keys;  // all of these must be present
  TaskItem (*read)(const Line&);
  TaskMethod method;
  Match match = Match::exact;
  const char* pattern = "";
};

// The layouts are tried in this order; the first one whose keys are all present is taken.
const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {{"task", "question", "answer"}, read_native, TaskMethod::generate},
      {{"answerKey"}, read_ai2, TaskMethod::likelihood},
      {{"goal", "sol1", "sol2"}, read_piqa, TaskMethod::likelihood},
      {{"sentence", "option1", "option2"}, read_winogrande, TaskMethod::likelihood},
      {{"ctx_a", "ctx_b", "endings"}, read_hellaswag, TaskMethod::likelihood},
      {{"passage", "question"}, read_boolq, TaskMethod::likelihood},
      {{"problem", "answer"}, read_math, TaskMethod::generate, Match::boxed},
      {{"instruction", "answer"},
       read_instruction,
       TaskMethod::generate,
       Match::regex,
       "(true|false|(?:answer|solution|option|ending)[1-5])"},
      {{"question", "answer"}, read_gsm8k, TaskMethod::generate, Match::after_marker, "####"},
  };
  return all;
}

std::vector<json> parse_lines(const std::string& path, const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  check(first != std::string::npos, "{} is empty", path);
  if (text[first] == '[') {
    json array = parse_json(text, path);
    check(array.is_array(), "{} begins like a JSON array but is not one", path);
    return std::move(array.get_ref<json::array_t&>());
  }
  std::vector<json> values;
  Meter meter(path, kMaxWork, kMaxMemory + text.size());
  for_each_line(text, [&](std::string_view line, int64_t number) {
    values.push_back(parse_json(line, fmt::format("{} line {}", path, number), meter));
    check(values.back().is_object(), "{} line {} is not a JSON object", path, number);
  });
  return values;
}

// PIQA is published with its labels in a separate file beside the questions.
void add_labels(const std::string& path, std::vector<json>& values) {
  if (!values[0].contains("goal") || values[0].contains("label")) return;
  const std::string labels_path =
      (std::filesystem::path(path).parent_path() / (std::filesystem::path(path).stem().string() + "-labels.lst"))
          .string();
  std::string labels = read_text_file(labels_path);
  std::erase_if(labels, [](char c) { return c != '0' && c != '1'; });
  check(labels.size() == values.size(), "{} has {} labels for the {} questions of {}", labels_path, labels.size(),
        values.size(), path);
  for (size_t i = 0; i < values.size(); ++i) values[i]["label"] = labels[i] - '0';
}

}  // namespace

TaskSet read_tasks(const std::string& path) {
  const std::string text = read_text_file(path);
  std::vector<json> values = parse_lines(path, text);
  check(!values.empty(), "{} holds no questions", path);
  for (size_t i = 0; i < values.size(); ++i)
    check(values[i].is_object(), "{} question {} is not a JSON object", path, i + 1);
  const json first = values[0];
  const auto layout = std::find_if(layouts().begin(), layouts().end(), [&](const Layout& l) {
    return std::all_of(l.keys.begin(), l.keys.end(), [&](const char* key) { return first.contains(key); });
  });
  check(layout != layouts().end(),
        "{} is in no known layout; simplest is a JSON object a line with \"id\", \"task\", \"question\" and \"answer\"",
        path);
  add_labels(path, values);

  TaskSet set{path, sha256_hex(text), layout->method, layout->match, layout->pattern, {}};
  for (size_t i = 0; i < values.size(); ++i) {
    const Line line{std::move(values[i]), fmt::format("{} question {}", path, i + 1), i};
    try {
      set.items.push_back(layout->read(line));
    } catch (const json::exception& e) {
      throw Error("{}: {}", line.where, e.what());
    }
  }
  return set;
}

void add_examples(TaskSet& set, const TaskSet& source, int64_t shots) {
  check(source.method == set.method && source.match == set.match,
        "{} and {} hold questions of different kinds: examples must be answered as the questions are", source.path,
        set.path);
  std::map<std::string, std::set<std::string>> asked;  // the questions asked, by task
  for (const TaskItem& item : set.items) asked[item.task].insert(item.question);
  for (const auto& [task, questions] : asked) {
    int64_t taken = 0;
    for (const TaskItem& e : source.items) {
      if (e.task != task || taken == shots) continue;
      check(!questions.contains(e.question), "{} shows {} {} with its answer, and {} asks it: give another file",
            source.path, e.task, e.id, set.path);
      set.examples.push_back(e);
      ++taken;
    }
    check(taken == shots, "{} has {} questions of the task {}, {} are to be shown", source.path, taken, task, shots);
  }
}

}  // namespace fidelio
