// Device memory by plain allocations, and the device itself.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

struct CUstream_st;

namespace fidelio::cuda {

using Stream = CUstream_st*;

// Owns device bytes, zeroed. Copies nothing; freed with the last owner.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(
      size_t bytes);  // throws Error when the device is full, saying how much was asked for and is held
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

// Host memory that the device reaches without the driver copying it once more (page-locked).
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

int64_t device_bytes_free();     // of the current device
int64_t device_bytes_highest();  // the most that all DeviceBuffers held at any time

struct DeviceInfo {
  std::string name;
  int major = 0, minor = 0, sms = 0;
};
// Makes `device` current. Throws Error for no driver, no such device, or one older than compute capability 8.0.
DeviceInfo open_device(int device);

// What the code that the device runs was compiled for. The device alone does not say: a Hopper runs what was compiled
// for it, and else what was compiled for compute_80 as PTX, which has none of the below. Asked of the code, once.
struct DeviceCode {
  bool dependents = false;  // has griddepcontrol, without which a dependent launch would not wait
  bool hopper = false;      // of sm_90a: bulk copies and barriers in shared memory, clusters, products of warpgroups
};
const DeviceCode& device_code();

// Bytes a second read and written by copies within the current device's memory: the median of several.
double copy_bandwidth();

// Copies. from_device waits for the stream. What is not on the device by name may be there all the same (Runner's own
// memory): addresses say where they are.
void to_device(Stream stream, void* to, const void* from, size_t bytes);
void from_device(Stream stream, void* to, const void* from, size_t bytes);
void on_device(Stream stream, void* to, const void* from, size_t bytes);
void zero_device(Stream stream, void* to, size_t bytes);
Stream make_stream();
void destroy_stream(Stream stream);
void wait_for(Stream stream);

// Scratch that only grows: waits for the stream, then what it held is lost.
void reserve(Stream stream, DeviceBuffer& buffer, int64_t bytes);

}  // namespace fidelio::cuda
