// Which phases blocks of a launch note (kernels/phase_stamps.cuh), checked against how many it has.
#pragma once

void begin_phases(unsigned blocks, unsigned threads, unsigned count);  // of a launch
void check_phases_noted();  // of a launch that has run: begin and end of each, by some block
