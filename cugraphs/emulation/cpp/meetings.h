// The places by which blocks that meet in memory hand on values, and the counts that say when to look.
//
// Knows what each place holds and who has used it; what comes before what is known in order.h, where arrivals
// that release and waits that acquire hand clocks on.
#pragma once

void begin_meetings(bool meets);  // of a launch
bool launch_meets();              // its blocks run at once
