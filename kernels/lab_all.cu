#include "linear.cu"
#include "linear_add_rms_norm.cu"
#include "linear_swiglu.cu"
#include "lab_rows.cu"
