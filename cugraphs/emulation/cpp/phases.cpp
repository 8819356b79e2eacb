// Which phases blocks of a launch note: each thread in order, and no end that it has not begun.
#include "phases.h"

#include <vector>

#include "runtime.h"
#include "scheduler.h"

namespace {

enum Noted { kBegin = 1, kEnd = 2, kBoth = 3 };

unsigned num_phases = 0, num_threads = 0;  // of a block
std::vector<int> newest;                   // that each thread has begun; -1: none
std::vector<unsigned char> noted;          // of each phase of each block, as on a GPU: Noted

}  // namespace

void begin_phases(unsigned blocks, unsigned threads, unsigned count) {
  num_phases = count;
  num_threads = threads;
  newest.assign(count ? blocks * threads : 0, -1);
  noted.assign(blocks * count, 0);
}

void check_phases_noted() {
  for (size_t number = 0; number < num_phases; ++number) {
    bool is_noted = false;
    for (size_t at = number; at < noted.size(); at += num_phases) is_noted |= noted[at] == kBoth;
    if (!is_noted) {
      return fail("", nullptr, "no block notes begin and end of phase %zu", number);
    }
  }
}

extern "C" void emu_note_phase(const char* site, int number, int ends) {
  if (number < 0 || number >= static_cast<int>(num_phases)) {
    emu_fail(site, "phase %d is noted, expected one of %u", number, num_phases);
  }
  if (programmatic && !running->waited_for_previous) {
    emu_fail(site, "phase %d is noted before griddepcontrol.wait", number);
  }
  const EmuIndex& index = launch.block_index;
  const size_t block = index.x + launch.grid.x * (index.y + launch.grid.y * size_t{index.z});
  int& own = newest[block * num_threads + running->number];
  unsigned char& of_block = noted[block * num_phases + number];
  if (ends) {
    if (number > own) emu_fail(site, "phase %d ends before it begins", number);
    if (running->lane == 0) of_block |= kEnd;
  } else {
    if (number < own) emu_fail(site, "phase %d begins after phase %d", number, own);
    own = number;
    if (running->number == 0) of_block |= kBegin;
  }
}
