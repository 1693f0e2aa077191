// This file computes SHA-256 (by OpenSSL), which records the origin of a checkpoint.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace fidelio {

class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  std::string hex();  // This returns 64 hex digits; the object cannot be used afterwards.

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> context_;
};

std::string sha256_hex(std::string_view text);
std::string sha256_file(const std::string& path);  // It streams the file, and throws Error if that cannot be read.

}  // namespace fidelio
