// This file defines Tensor, a view of elements (shape, type, address), and Buffer, which owns bytes by value.
#pragma once
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "core/dtype.h"
#include "core/error.h"

namespace fidelio {

// A shape has up to four dimensions and is row-major: the last dimension varies fastest.
struct Shape {
  int rank = 0;
  int64_t dim[4] = {1, 1, 1, 1};

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    check(dims.size() <= 4, "a tensor has at most 4 dimensions, not {}", dims.size());
    for (int64_t d : dims) dim[rank++] = d;
  }
  int64_t operator[](int i) const { return dim[i]; }
  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dim[i];
    return n;
  }
  bool operator==(const Shape& other) const {
    if (rank != other.rank) return false;
    for (int i = 0; i < rank; ++i)
      if (dim[i] != other.dim[i]) return false;
    return true;
  }
};
std::string to_string(const Shape& shape);  // The result looks like "[4, 128]".

namespace detail {
template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<f16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::i8;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<uint16_t> {
  static constexpr DType value = DType::u16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::i64;
};
}  // namespace detail

struct Tensor {
  DType dtype = DType::f32;
  Shape shape;
  std::byte* data = nullptr;  // The tensor does not own this memory.

  int64_t elements() const { return shape.elements(); }
  int64_t bytes() const { return elements() * size_of(dtype); }
  explicit operator bool() const { return data != nullptr; }

  // Returns the elements as T. Throws Error if T does not match the dtype.
  template <typename T>
  std::span<T> as() const {
    using Element = std::remove_const_t<T>;
    // check() is not used, as it would build the words of its message every time.
    if (dtype != detail::DTypeOf<Element>::value) [[unlikely]]
      throw Error("tensor {} holds {}, not {}", to_string(shape), name_of(dtype),
                  name_of(detail::DTypeOf<Element>::value));
    return {reinterpret_cast<T*>(data), static_cast<size_t>(elements())};
  }
};

// Converts every float dtype (f32, f16, bf16, f64, f8) to float. `out` has tensor.elements() places.
void convert_to_float(const Tensor& tensor, std::span<float> out);
// Converts floats to f32, f16 or bf16, rounding to nearest even.
void convert_from_float(std::span<const float> in, const Tensor& out);

// A Buffer owns zeroed bytes aligned to 64. A large one is mapped and untouched until used, so a key-value cache costs
// only what it holds. It asks for huge pages, which weights that stream from memory need.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);
  Buffer(Buffer&& other) noexcept : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }
  Tensor view(DType dtype, Shape shape, size_t offset = 0) const;  // It throws Error if the view does not fit.

 private:
  struct Free {
    Free() : mapped(0) {}
    Free(size_t bytes, std::shared_ptr<std::byte> owner) : mapped(bytes), chunk(std::move(owner)) {}
    size_t mapped;  // These are the bytes of the mapping; 0 means that the memory is from the heap or a chunk.
    std::shared_ptr<std::byte> chunk;  // This is the chunk that the memory is a part of, if any.
    void operator()(std::byte* p) const;
  };
  friend class Arena;
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

// An Arena lays Buffers one after the other in chunks of huge pages, so matrices too small to have huge pages of their
// own stream from memory as large ones do (5% of a decode step). A chunk lives as long as any of its Buffers.
class Arena {
 public:
  Buffer keep(Buffer buffer);  // It moves the bytes here and returns a Buffer of them.

 private:
  std::shared_ptr<std::byte> chunk_;
  size_t used_ = 0;
};

// This is a tensor that keeps its storage alive: a Buffer of its own, or a memory-mapped file shared by many.
struct OwnedTensor {
  Tensor view;
  std::shared_ptr<const void> owner;

  static OwnedTensor allocate(DType dtype, Shape shape);
  template <typename T>
  std::span<T> as() const {
    return view.as<T>();
  }
  explicit operator bool() const { return static_cast<bool>(view); }
};

}  // namespace fidelio
