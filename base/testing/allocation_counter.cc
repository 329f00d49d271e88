#include "reprise/base/testing/allocation_counter.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace reprise {
namespace {

thread_local int64_t num_allocations = 0;

// Returns null if memory runs out.
void* TryAllocate(std::size_t size, std::size_t alignment) noexcept {
  ++num_allocations;
  size = std::max<std::size_t>(size, 1);
  // aligned_alloc only accepts multiples of the alignment.
  if (alignment <= alignof(std::max_align_t)) return std::malloc(size);
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

void* Allocate(std::size_t size, std::size_t alignment) {
  void* const memory = TryAllocate(size, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

AllocationCounter::AllocationCounter() : start_(num_allocations) {}

int64_t AllocationCounter::count() const { return num_allocations - start_; }

}  // namespace reprise

// Replaces every form of new, because a sanitizer defines the forms that are missing.
void* operator new(std::size_t size) { return reprise::Allocate(size, 1); }
void* operator new[](std::size_t size) { return reprise::Allocate(size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return reprise::Allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return reprise::Allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return reprise::TryAllocate(size, 1);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return reprise::TryAllocate(size, 1);
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return reprise::TryAllocate(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return reprise::TryAllocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
