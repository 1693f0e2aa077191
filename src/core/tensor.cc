#include "core/tensor.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>

namespace fidelio {
namespace {

struct DTypeName {
  DType type;
  std::string_view name;
};
constexpr std::array<DTypeName, 15> kNames = {{{DType::f32, "F32"},
                                               {DType::f16, "F16"},
                                               {DType::bf16, "BF16"},
                                               {DType::f64, "F64"},
                                               {DType::i8, "I8"},
                                               {DType::u8, "U8"},
                                               {DType::i16, "I16"},
                                               {DType::u16, "U16"},
                                               {DType::i32, "I32"},
                                               {DType::u32, "U32"},
                                               {DType::i64, "I64"},
                                               {DType::u64, "U64"},
                                               {DType::f8_e4m3, "F8_E4M3"},
                                               {DType::f8_e5m2, "F8_E5M2"},
                                               {DType::boolean, "BOOL"}}};

// E4M3 has no infinities (0x7f and 0xff are NaN). E5M2 is the upper half of an FP16.
float from_e4m3(uint8_t x) {
  const int exponent = (x >> 3) & 15, mantissa = x & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(1.0f + static_cast<float>(mantissa) / 8.0f, exponent - 7);
  return (x & 0x80) ? -magnitude : magnitude;
}

}  // namespace

std::string_view name_of(DType type) {
  for (const DTypeName& row : kNames)
    if (row.type == type) return row.name;
  return "?";
}

DType parse_dtype(std::string_view name) {
  for (const DTypeName& row : kNames)
    if (row.name == name) return row.type;
  throw Error("unknown dtype \"{}\"; known are F32 F16 BF16 F64 I8 U8 I16 U16 I32 U32 I64 U64 F8_E4M3 F8_E5M2 BOOL",
              name);
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

void convert_to_float(const Tensor& t, std::span<float> out) {
  check(static_cast<int64_t>(out.size()) == t.elements(), "convert_to_float: {} elements into {} places", t.elements(),
        out.size());
  const auto each = [&](auto span, auto f) { std::transform(span.begin(), span.end(), out.begin(), f); };
  const std::span<const uint8_t> raw{reinterpret_cast<const uint8_t*>(t.data), out.size()};
  switch (t.dtype) {
    case DType::f32:
      std::memcpy(out.data(), t.data, out.size_bytes());
      return;
    case DType::f64:
      return each(t.as<double>(), [](double x) { return static_cast<float>(x); });
    case DType::f16:
      return each(t.as<f16>(), [](f16 x) { return to_float(x); });
    case DType::bf16:
      return each(t.as<bf16>(), [](bf16 x) { return to_float(x); });
    case DType::f8_e4m3:
      return each(raw, from_e4m3);
    case DType::f8_e5m2:
      return each(raw, [](uint8_t x) { return to_float(f16{static_cast<uint16_t>(x << 8)}); });
    default:
      throw Error("a tensor of {} is not a float tensor", name_of(t.dtype));
  }
}

void convert_from_float(std::span<const float> in, const Tensor& t) {
  check(static_cast<int64_t>(in.size()) == t.elements(), "convert_from_float: {} elements into {} places", in.size(),
        t.elements());
  switch (t.dtype) {
    case DType::f32:
      std::memcpy(t.data, in.data(), in.size_bytes());
      return;
    case DType::f16:
      std::transform(in.begin(), in.end(), t.as<f16>().begin(), [](float x) { return to_f16(x); });
      return;
    case DType::bf16:
      std::transform(in.begin(), in.end(), t.as<bf16>().begin(), [](float x) { return to_bf16(x); });
      return;
    default:
      throw Error("cannot write float values as {}", name_of(t.dtype));
  }
}

namespace {

constexpr size_t kHugePage = size_t{2} << 20, kChunk = 16 * kHugePage;

// Returns a zeroed mapping that begins on a huge page, or nullptr.
std::byte* map_huge(size_t bytes) {
  void* raw = ::mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<uintptr_t>(raw), aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > begin) ::munmap(raw, aligned - begin);
  // This gives back the rest behind the mapping.
  ::munmap(reinterpret_cast<void*>(aligned + bytes), begin + kHugePage - aligned);
  ::madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);
  return reinterpret_cast<std::byte*>(aligned);
}

}  // namespace

Buffer::Buffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  if (bytes >= 2 * kHugePage) {
    // The end gets no huge page, which would be resident as a whole.
    const size_t mapped = (bytes + 4095) / 4096 * 4096;
    data_ = {map_huge(mapped), Free(mapped, nullptr)};
  } else {
    const size_t rounded = (bytes + 63) / 64 * 64;
    data_ = {static_cast<std::byte*>(std::aligned_alloc(64, rounded)), Free()};
    if (data_) std::memset(data_.get(), 0, rounded);
  }
  check(data_ != nullptr, "out of memory: {} bytes asked for", bytes);
}

void Buffer::Free::operator()(std::byte* p) const {
  if (chunk) return;
  if (mapped > 0) {
    ::munmap(p, mapped);
  } else {
    std::free(p);
  }
}

Buffer Arena::keep(Buffer buffer) {
  const size_t rounded = (buffer.size() + 63) / 64 * 64;
  if (rounded == 0 || rounded > kChunk / 4) return buffer;
  if (!chunk_ || used_ + rounded > kChunk) {
    std::byte* mapped = map_huge(kChunk);
    check(mapped != nullptr, "out of memory: {} bytes asked for", kChunk);
    chunk_ = {mapped, [](std::byte* p) { ::munmap(p, kChunk); }};
    used_ = 0;
  }
  Buffer kept;
  kept.data_ = {chunk_.get() + used_, Buffer::Free(0, chunk_)};
  kept.size_ = buffer.size();
  used_ += rounded;
  std::memcpy(kept.data(), buffer.data(), buffer.size());
  return kept;
}

Tensor Buffer::view(DType dtype, Shape shape, size_t offset) const {
  Tensor t{dtype, shape, data() + offset};
  check(offset + static_cast<size_t>(t.bytes()) <= size_, "a view of {} bytes at {} does not fit a buffer of {}",
        t.bytes(), offset, size_);
  return t;
}

OwnedTensor OwnedTensor::allocate(DType dtype, Shape shape) {
  auto buffer = std::make_shared<Buffer>(static_cast<size_t>(shape.elements() * size_of(dtype)));
  const Tensor view = buffer->view(dtype, shape);
  return {view, std::move(buffer)};
}

}  // namespace fidelio
