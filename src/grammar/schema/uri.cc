#include "grammar/schema/uri.h"

#include <vector>

namespace fidelio::grammar {
namespace {

// Returns the length of "scheme:", or 0 where there is none.
size_t scheme_of(const std::string& uri) {
  const size_t end = uri.find_first_of(":/?#");
  return end == std::string::npos || end == 0 || uri[end] != ':' ? 0 : end + 1;
}

// Returns where the path begins, after a scheme and an authority.
size_t path_of(const std::string& uri) {
  const size_t at = scheme_of(uri);
  return uri.compare(at, 2, "//") == 0 ? std::min(uri.find_first_of("/?#", at + 2), uri.size()) : at;
}

std::string without_dots(const std::string& path) {
  std::vector<std::string> parts;
  for (size_t at = 0, next; at <= path.size(); at = next + 1) {
    next = std::min(path.find('/', at), path.size());
    const std::string part = path.substr(at, next - at);
    const bool last = next == path.size();
    if (part == "..") {
      if (parts.size() > 1) parts.pop_back();
      if (last) parts.emplace_back();
    } else if (part != "." || last) {
      parts.push_back(part == "." ? "" : part);
    }
  }
  std::string all;
  for (size_t i = 0; i < parts.size(); ++i) all += (i > 0 ? "/" : "") + parts[i];
  return all;
}

}  // namespace

std::string resolved_uri(const std::string& base, const std::string& reference) {
  if (scheme_of(reference) > 0) return reference;
  const size_t own = std::min(base.find('#'), base.size());
  if (reference.empty() || reference[0] == '#') return base.substr(0, own) + reference;
  if (reference.starts_with("//")) return base.substr(0, scheme_of(base)) + reference;
  const size_t path = path_of(base), tail = std::min(reference.find_first_of("?#"), reference.size());
  const std::string relative = reference.substr(0, tail), rest = reference.substr(tail);
  if (relative.empty()) return base.substr(0, std::min(base.find_first_of("?#"), base.size())) + rest;
  if (relative[0] == '/') return base.substr(0, path) + without_dots(relative) + rest;
  const std::string whole = base.substr(path, std::min(base.find_first_of("?#", path), base.size()) - path);
  const size_t slash = whole.rfind('/');
  const std::string folder =
      slash == std::string::npos ? (path > scheme_of(base) ? "/" : "") : whole.substr(0, slash + 1);
  return base.substr(0, path) + without_dots(folder + relative) + rest;
}

}  // namespace fidelio::grammar
