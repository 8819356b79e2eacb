// The first parameter of a launch that stands for several ops of one kernel, one after the other (see
// Launch.stack): what each of them has of its own.
#pragma once

constexpr int kMostStacked = 32;  // launch_declaration.MAX_STACK

// Element is a struct of pointers, in the order of Launch.stack.
template <typename Element>
struct Stack {
  Element of[kMostStacked];
  long long count;
};
