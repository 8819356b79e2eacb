// sample: token_ids[r] = the lowest kept id with (sum of kept w up to it) > u * (sum of kept w),
// w = exp((l - max l) / temperature), kept by min_p, then top_k, then top_p; or the likeliest token
//
// Each weight is computed in float32 and rounded to a multiple of 2^-38; sums of weights are exact.
// One block per row. A dead row (row id -1) gives 0, a row that is no distribution -1. Reads of the
// row: one to find the highest logit, which is all that a greedy row needs; one to draw; and for
// each of top_k and top_p two, or more where very many logits are close together.
#include "philox.cuh"
#include "shortest_prefix.cuh"

// Logits further below the highest than this many temperatures weigh too little for top_p to end
// among them, unless it is very close to 1.
constexpr float kSpanTemperatures = 20.0f;

struct Weight {
  float peak, scale_high, scale_low;  // scale_high + scale_low is log2(e) / temperature

  __device__ __forceinline__ Fixed operator()(float logit) const {
    const float x = fmaxf(logit - peak, -1e30f);
    const float weight = exp2f(fmaf(x, scale_high, x * scale_low));
    const float scaled = weight * (1 << kHalfBits);
    const unsigned high = static_cast<unsigned>(scaled);
    const float rest = (scaled - static_cast<float>(high)) * (1 << kHalfBits);
    return {high, static_cast<unsigned>(rest + 0.5f)};
  }
};

// What thread 0 computes, partly in float64, and all threads read again where they need it.
struct DrawParameters {
  Weight weight;
  Prefix min_p;  // what min_p keeps
  int top_k;
  float top_p;
  float top_k_span, top_p_span;  // of the first histograms
  unsigned draw;                 // 24 bits
};

__device__ __forceinline__ DrawParameters draw_parameters(
    Extent extent, float temperature, int top_k, float top_p, float min_p, PhiloxWords words) {
  DrawParameters d;
  const float peak = key_logit(extent.top_key);
  // log2(e) / temperature to some 48 bits: a float64 division would spill registers.
  const double inverse = __fdividef(1.0f, temperature);
  const double scale = 1.4426950408889634 * inverse * (2.0 - temperature * inverse);
  d.weight.peak = peak;
  d.weight.scale_high = static_cast<float>(scale);
  d.weight.scale_low = static_cast<float>(scale - d.weight.scale_high);
  d.min_p = kWholeRow;
  if (min_p > 0.0f) {
    const double threshold = peak + temperature * log(static_cast<double>(min_p));
    const float rounded = static_cast<float>(threshold);
    d.min_p.key = order_key(rounded) + (rounded < threshold ? 1 : 0);
  }
  d.top_k = top_k;
  d.top_p = top_p;
  d.top_k_span = peak - key_logit(extent.bottom_key);
  d.top_p_span = fminf(d.top_k_span, kSpanTemperatures * temperature);
  d.draw = words.w[0] >> 8;
  return d;
}

// draw / 2^24 of the total, rounded down. The total is below 2^56.
__device__ __forceinline__ Sum share(Sum total, unsigned draw) {
  return ((total >> 32) * draw << 8) + ((total & 0xffffffffu) * draw >> 24);
}

template <int kWidth>
__global__ void __launch_bounds__(kRowThreads) sample(
    int* __restrict__ token_ids,               // [rows]
    int* __restrict__ token_counts,            // [slots, vocab]
    const float* __restrict__ adjusted,        // [rows, vocab]
    const int* __restrict__ row_ids,           // [rows]
    const int* __restrict__ sample_positions,  // [rows]
    const float* __restrict__ temperature,     // [slots]
    const int* __restrict__ top_k,             // [slots]
    const float* __restrict__ top_p,           // [slots]
    const float* __restrict__ min_p,           // [slots]
    const unsigned* __restrict__ seeds,        // [slots, 2]
    const int* __restrict__ sample_index,      // [slots]
    const int* __restrict__ count_tokens,      // [slots]
    int vocab) {
  extern __shared__ __align__(16) unsigned char smem[];
  PrefixScratch& scratch = *reinterpret_cast<PrefixScratch*>(smem);
  __shared__ DrawParameters parameters;
  const int row = blockIdx.x, slot = row_ids[row];
  if (slot < 0) {
    if (threadIdx.x == 0) token_ids[row] = 0;
    return;
  }
  const float* logits = adjusted + static_cast<long long>(row) * vocab;
  const Extent extent = row_extent<float, kWidth>(logits, vocab);
  int token = extent.is_broken() ? -1 : extent.top_id;
  const bool is_drawn = temperature[slot] >= 1e-5f && top_k[slot] != 1;

  if (token >= 0 && is_drawn) {
    if (threadIdx.x == 0) {
      const PhiloxWords counter = {{static_cast<unsigned>(sample_positions[row]),
                                    static_cast<unsigned>(sample_index[slot]), kUseSample, 0}};
      const PhiloxWords words = philox4x32_10(counter, seeds[2 * slot], seeds[2 * slot + 1]);
      parameters =
          draw_parameters(extent, temperature[slot], top_k[slot], top_p[slot], min_p[slot], words);
    }
    __syncthreads();
    Prefix kept = parameters.min_p;
    if (parameters.top_k > 0) {
      auto goal = [&](Sum) { return static_cast<Sum>(parameters.top_k); };
      kept = shortest_prefix<float, kWidth>(
          logits, vocab, extent, kept, parameters.top_k_span, CountOne{}, goal, scratch);
    }
    const Weight weight = parameters.weight;
    if (parameters.top_p < 1.0f) {
      auto goal = [&](Sum total) {
        const Sum wanted = static_cast<Sum>(ceil(static_cast<double>(parameters.top_p) * total));
        return wanted > 0 ? wanted : Sum(1);
      };
      kept = shortest_prefix<float, kWidth>(
          logits, vocab, extent, kept, parameters.top_p_span, weight, goal, scratch);
    }
    token = lowest_id_above<float, kWidth>(
        logits, vocab, scratch.sums,
        [&](float logit, int id) {
          return kept.holds(order_key(logit), id) ? weight(logit) : Fixed{0, 0};
        },
        [&](Sum total) { return share(total, parameters.draw); });
  }
  if (threadIdx.x == 0) {
    token_ids[row] = token;
    if (token >= 0 && count_tokens[slot] != 0) {
      atomicAdd(&token_counts[static_cast<long long>(slot) * vocab + token], 1);
    }
  }
}
