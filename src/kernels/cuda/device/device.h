// This file has device memory by plain allocations, and the device itself.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

struct CUstream_st;

namespace fidelio::cuda {

using Stream = CUstream_st*;

// A DeviceBuffer owns device memory, which is zeroed at first. It cannot be copied, and its memory is freed with its
// last owner.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // Throws Error if the device is full, saying how much was asked for and how much is held.
  explicit DeviceBuffer(size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Allocates page-locked host memory, which the device can access without another copy by the driver.
void* allocate_pinned(size_t bytes);
void free_pinned(void* p);
template <typename T>
struct PinnedAllocator {
  using value_type = T;
  PinnedAllocator() = default;
  template <typename U>
  PinnedAllocator(const PinnedAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(allocate_pinned(n * sizeof(T))); }
  void deallocate(T* p, size_t) { free_pinned(p); }
  bool operator==(const PinnedAllocator&) const = default;
};

int64_t device_bytes_free();     // bytes of the current device that are free or kept for the next buffers
int64_t device_bytes_highest();  // the most bytes that all DeviceBuffers have held at any time

struct DeviceInfo {
  std::string name;
  int major = 0, minor = 0, sms = 0;
};
// Makes `device` current. Throws Error if there is no driver or no such device, or if it is older than compute
// capability 8.0.
DeviceInfo open_device(int device);

// DeviceCode says what the code that the device runs was compiled for. The device alone does not tell: a Hopper runs
// what was compiled for it, or else what was compiled for compute_80 as PTX, which has none of these features. The
// code is asked once.
struct DeviceCode {
  bool dependents = false;  // has griddepcontrol, without which a dependent launch would not wait
  bool hopper = false;  // compiled for sm_90a: bulk copies, barriers in shared memory, clusters, products of warpgroups
};
const DeviceCode& device_code();

// Returns the bytes per second that copies within the current device's memory read and write, as the median of
// several.
double copy_bandwidth();

// These copy memory. from_device waits for the stream. The memory that is called the host's may be on the device all
// the same (Runner's own memory); addresses tell where it is.
void to_device(Stream stream, void* to, const void* from, size_t bytes);
void from_device(Stream stream, void* to, const void* from, size_t bytes);
void on_device(Stream stream, void* to, const void* from, size_t bytes);
void zero_device(Stream stream, void* to, size_t bytes);
Stream make_stream();
void destroy_stream(Stream stream);
void wait_for(Stream stream);

// Makes sure that a buffer has at least so many bytes. If it grows, it waits for the stream first, and its contents
// are lost.
void reserve(Stream stream, DeviceBuffer& buffer, int64_t bytes);

}  // namespace fidelio::cuda
