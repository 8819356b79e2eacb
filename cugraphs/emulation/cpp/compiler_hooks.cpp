// The functions that g++ calls in code built with -fsanitize=thread and -fsanitize=undefined. No
// sanitizer library is linked: these take its place, and know about blocks, warps and barriers.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <string>

#include "checks.h"
#include "threads.h"

#define CALLER __builtin_return_address(0)

namespace {
void seen(void* address, size_t bytes, bool is_write, Atomicity atomicity, void* pc) {
  check_access(reinterpret_cast<uintptr_t>(address), bytes, is_write, atomicity, nullptr, pc);
}
}  // namespace

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_vptr_read(void*) {}
void __tsan_read_range(void* p, size_t n) { seen(p, n, false, kPlain, CALLER); }
void __tsan_write_range(void* p, size_t n) { seen(p, n, true, kPlain, CALLER); }

// A volatile access is what a kernel polls memory with: it is ordered like an atomic one.
#define ACCESSES(n)                                                                       \
  void __tsan_read##n(void* p) { seen(p, n, false, kPlain, CALLER); }                     \
  void __tsan_write##n(void* p) { seen(p, n, true, kPlain, CALLER); }                     \
  void __tsan_unaligned_read##n(void* p) { seen(p, n, false, kPlain, CALLER); }           \
  void __tsan_unaligned_write##n(void* p) { seen(p, n, true, kPlain, CALLER); }           \
  void __tsan_volatile_read##n(void* p) { seen(p, n, false, kAtomic, CALLER); }           \
  void __tsan_volatile_write##n(void* p) { seen(p, n, true, kAtomic, CALLER); }           \
  void __tsan_unaligned_volatile_read##n(void* p) { seen(p, n, false, kAtomic, CALLER); } \
  void __tsan_unaligned_volatile_write##n(void* p) { seen(p, n, true, kAtomic, CALLER); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
#undef ACCESSES

void* __tsan_memcpy(void* to, const void* from, size_t n) {
  seen(const_cast<void*>(from), n, false, kPlain, CALLER);
  seen(to, n, true, kPlain, CALLER);
  return memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, size_t n) {
  seen(const_cast<void*>(from), n, false, kPlain, CALLER);
  seen(to, n, true, kPlain, CALLER);
  return memmove(to, from, n);
}
void* __tsan_memset(void* to, int value, size_t n) {
  seen(to, n, true, kPlain, CALLER);
  return memset(to, value, n);
}

// Every description that the compiler passes begins with the place in the source.
struct SourceLocation {
  const char* file;
  unsigned line, column;
};
struct TypeMismatch {
  SourceLocation location;
  const void* type;
  unsigned char log_alignment, kind;
};
}

namespace {
void fail_at(const SourceLocation* location, const char* what) {
  const std::string site = std::string(location->file) + ":" + std::to_string(location->line);
  fail(site.c_str(), nullptr, "%s", what);
}
}  // namespace

extern "C" {
void __ubsan_handle_type_mismatch_v1(TypeMismatch* data, uintptr_t address) {
  char text[128];
  snprintf(
      text, sizeof(text), "misaligned access: the address is %zu bytes off a multiple of %zu",
      static_cast<size_t>(address & ((uintptr_t{1} << data->log_alignment) - 1)),
      size_t{1} << data->log_alignment);
  fail_at(&data->location, text);
}

#define HANDLER(name, what) \
  void __ubsan_handle_##name(SourceLocation* data) { fail_at(data, what); }
HANDLER(out_of_bounds, "index out of the bounds of an array")
HANDLER(add_overflow, "overflow of a signed integer in an addition")
HANDLER(sub_overflow, "overflow of a signed integer in a subtraction")
HANDLER(mul_overflow, "overflow of a signed integer in a multiplication")
HANDLER(negate_overflow, "overflow of a signed integer in a negation")
HANDLER(divrem_overflow, "division by zero, or its overflow")
HANDLER(shift_out_of_bounds, "shift by a negative number of bits, or by too many")
#undef HANDLER
}
