// What Python calls (library.py): operands, the order of threads, a launch, and its failure.
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "checks.h"
#include "mapping.h"
#include "meetings.h"
#include "phases.h"
#include "runtime.h"
#include "scheduler.h"
#include "shared_memory.h"

namespace {

// Where the kernel's library keeps its constants and its thread-local storage: shared memory.
struct Library {
  uintptr_t address;
  uintptr_t shared_begin = 0, shared_end = 0;
};

int visit_library(dl_phdr_info* info, size_t, void* data) {
  auto* library = static_cast<Library*>(data);
  const auto begin_of = [&](const auto& header) { return info->dlpi_addr + header.p_vaddr; };
  bool is_it = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    const uintptr_t begin = begin_of(header);
    is_it |= header.p_type == PT_LOAD && library->address >= begin &&
             library->address < begin + header.p_memsz;
  }
  if (!is_it) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type == PT_LOAD)
      add_constants(begin_of(header), begin_of(header) + header.p_memsz);
    if (header.p_type == PT_TLS && info->dlpi_tls_data) {
      library->shared_begin = reinterpret_cast<uintptr_t>(info->dlpi_tls_data);
      library->shared_end = library->shared_begin + header.p_memsz;
    }
  }
  return 1;
}

int fail_before_launch(const NoMemory& error) {
  failed = true;
  snprintf(failure.message, sizeof(failure.message), "%s", error.what());
  failure.site[0] = 0;
  failure.pc = nullptr;
  return 1;
}

}  // namespace

extern "C" {

void emu_set_order(int order, unsigned long long seed) {
  set_order(static_cast<Order>(order), seed);
}

void emu_clear_operands() { clear_operands(); }

// 0, or 1 with emu_failure().
int emu_add_operand(
    uintptr_t address, size_t bytes, int uninitialised, int writable, int early, const char* name) {
  try {
    add_operand(address, bytes, uninitialised, writable, early, name);
  } catch (const NoMemory& error) {
    return fail_before_launch(error);
  }
  return 0;
}

void emu_mark_late(uintptr_t address, size_t bytes) { mark_late(address, bytes); }

const char* emu_failure() { return failure.message; }
const char* emu_failure_site() { return failure.site; }

// The failing address as an offset into the kernel's library, 0 where the site says it.
uintptr_t emu_failure_offset() {
  Dl_info info;
  if (!failure.pc || !dladdr(failure.pc, &info)) return 0;
  // The address is where the call returns to; one byte before is still the call.
  return static_cast<uintptr_t>(
      static_cast<char*>(failure.pc) - static_cast<char*>(info.dli_fbase) - 1);
}

// A variable in the thread-local storage of the kernel's library: shared memory, or a byte of the
// compiler's own, which has no name.
struct EmuVariable {
  size_t offset, bytes;
  const char* name;
};

// Runs the launch; 0, or 1 with emu_failure(). `dynamic_shared` is the kernel library's function of
// that name; `variables` are needed where the launch is checked; `cluster` divides the grid in x, and is
// all of it where blocks meet in memory; `phases` are those that its blocks note.
int emu_launch(
    EmuFunction (*function)(),
    unsigned char* (*dynamic_shared)(unsigned*),
    void** arguments,
    const unsigned* grid,
    unsigned block_threads,
    unsigned shared_bytes,
    unsigned cluster,
    int meets,
    int checked,
    int is_programmatic,
    int does_settle,
    unsigned phases,
    const EmuVariable* variables,
    int num_variables) try {
  running = nullptr;
  failed = false;
  failure.message[0] = failure.site[0] = 0;
  failure.pc = nullptr;
  checking = checked;
  programmatic = is_programmatic;
  settles = does_settle;
  launch.function = function();
  launch.arguments = arguments;
  launch.grid = {grid[0], grid[1], grid[2]};
  launch.block = {block_threads, 1, 1};
  launch.cluster = cluster;

  unsigned capacity_bytes = 0;  // the address is asked first: it brings the storage into being
  const auto dynamic = reinterpret_cast<uintptr_t>(dynamic_shared(&capacity_bytes));
  if (shared_bytes > capacity_bytes) {
    fail(
        "", nullptr, "%u bytes of dynamic shared memory, expected at most %u", shared_bytes,
        capacity_bytes);
    return 1;
  }
  begin_launch();
  begin_meetings(meets);
  Library library{reinterpret_cast<uintptr_t>(function)};
  dl_iterate_phdr(visit_library, &library);
  if (checked) {
    add_shared(dynamic, shared_bytes, "smem");
    for (int i = 0; i < num_variables; ++i) {
      const EmuVariable& variable = variables[i];
      const uintptr_t address = library.shared_begin + variable.offset;
      if (variable.name) {
        add_shared(address, variable.bytes, variable.name);
      } else {
        for (size_t byte = 0; byte < variable.bytes; ++byte) ignore_shared(address + byte);
      }
    }
    end_of_setup();
  }

  shared_place = {library.shared_begin, library.shared_end, dynamic, shared_bytes, capacity_bytes};
  prepare_threads(block_threads);
  begin_phases(grid[0] * grid[1] * grid[2], block_threads, phases);
  std::vector<int> turns;
  permute(&turns, static_cast<int>(grid[0] / cluster * grid[1] * grid[2]));
  for (int number : turns) {
    run_cluster(static_cast<unsigned>(number) * cluster);
    running = nullptr;
    if (failed) return 1;
  }
  check_phases_noted();
  return failed;
} catch (const NoMemory& error) {
  return fail_before_launch(error);
}
}
