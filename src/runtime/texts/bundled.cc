#include "runtime/texts/bundled.h"

#include <zlib.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/file.h"
#include "runtime/texts/bundled_data.h"

namespace fidelio {
namespace {

constexpr std::string_view kBundled = "fidelio:/";

const BundledData* find_bundled(std::string_view name) {
  const std::span<const BundledData> all = bundled_data();
  const auto found = std::find_if(all.begin(), all.end(), [&](const BundledData& text) { return text.name == name; });
  return found == all.end() ? nullptr : &*found;
}

// Inflates a whole gzip file. Its last four bytes are the size of the contents.
std::string inflated(const BundledData& data) {
  const unsigned char* size = data.end - 4;
  std::string text(size[0] | size_t{size[1]} << 8 | size_t{size[2]} << 16 | size_t{size[3]} << 24, '\0');
  z_stream stream{};
  // The 16 asks for a gzip header.
  check(inflateInit2(&stream, 16 + MAX_WBITS) == Z_OK, "zlib has no memory for {}", data.name);
  stream.next_in = const_cast<unsigned char*>(data.begin);
  stream.avail_in = static_cast<uInt>(data.end - data.begin);
  stream.next_out = reinterpret_cast<unsigned char*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  const int ended = inflate(&stream, Z_FINISH);
  inflateEnd(&stream);
  check(ended == Z_STREAM_END && stream.avail_out == 0, "the program is damaged: its text {} cannot be read",
        data.name);
  return text;
}

}  // namespace

std::string bundled_text(std::string_view name) {
  std::vector<std::string_view> names;
  for (const BundledData& text : bundled_data()) names.push_back(text.name);
  check(find_bundled(name) != nullptr, "no text {} comes with fidelio; there are {}", name, fmt::join(names, ", "));
  return std::string(kBundled) + std::string(name);
}

std::string read_text(const std::string& path) {
  if (!path.starts_with(kBundled)) return read_text_file(path);
  const std::string name = path.substr(kBundled.size());
  bundled_text(name);
  return inflated(*find_bundled(name));
}

bool text_exists(const std::string& path) {
  if (path.starts_with(kBundled)) return find_bundled(path.substr(kBundled.size())) != nullptr;
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace fidelio
