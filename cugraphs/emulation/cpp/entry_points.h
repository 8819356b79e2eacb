// How the runtime calls a __global__ function: its address, its parameters, a call by pointers to
// the arguments. Part of cuda_on_cpu.h.
#pragma once
#include <stdio.h>

#include <type_traits>
#include <utility>

#include "runtime.h"

namespace emu {

template <typename P>
constexpr int pointee_bytes() {
  using Pointee = std::remove_pointer_t<P>;
  if constexpr (std::is_pointer_v<P> && !std::is_void_v<Pointee>) return sizeof(Pointee);
  return 0;
}

template <typename P>
constexpr char kind() {
  if constexpr (std::is_pointer_v<P>) return std::is_const_v<std::remove_pointer_t<P>> ? 'p' : 'm';
  return std::is_floating_point_v<P> ? 'f' : std::is_integral_v<P> ? 'i' : 's';
}

template <typename... P>
struct Signature {
  template <size_t... kIndex>
  EMU_UNCHECKED static void pass(
      void (*function)(P...), void** arguments, std::index_sequence<kIndex...>) {
    function(*static_cast<std::decay_t<P>*>(arguments[kIndex])...);
  }
  EMU_UNCHECKED static void call(void* function, void** arguments) {
    pass(reinterpret_cast<void (*)(P...)>(function), arguments, std::index_sequence_for<P...>{});
  }
  EMU_UNCHECKED static const char* parameters() {
    static char text[16 * sizeof...(P) + 1];
    char* end = text;
    ((end += snprintf(
          end, 16, "%c %d %d;", kind<std::decay_t<P>>(), int(sizeof(P)),
          pointee_bytes<std::decay_t<P>>())),
     ...);
    return text;
  }
};

template <typename... P>
Signature<P...> signature(void (*)(P...));

}  // namespace emu

#define EMU_EXPORT(symbol, ...)                                                              \
  extern "C" EmuFunction symbol() {                                                          \
    using Signature = decltype(emu::signature(__VA_ARGS__));                                 \
    return {Signature::call, reinterpret_cast<void*>(__VA_ARGS__), Signature::parameters()}; \
  }
