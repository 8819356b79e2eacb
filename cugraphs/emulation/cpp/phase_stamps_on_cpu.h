// What kernels/phase_stamps.cuh offers, on the CPU: no clock, but a check of what is noted.
#pragma once
#include "cuda_on_cpu.h"

#define begin_phases() ((void)0)
#define note_phase_begin(number) emu_note_phase(EMU_SITE, number, 0)
#define note_phase_end(number) emu_note_phase(EMU_SITE, number, 1)
