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

// What thread 0 computes in float64, once.
struct DrawParameters {
  float scale_high, scale_low;
  int min_p_key;
  unsigned draw;  // 24 bits
};

__device__ __forceinline__ DrawParameters
draw_parameters(float peak, float temperature, float min_p, unsigned draw) {
  const double scale = 1.4426950408889634 / temperature;
  const float scale_high = static_cast<float>(scale);
  int min_p_key = kLowestInt;
  if (min_p > 0.0f) {
    const double threshold =
        static_cast<double>(peak) + temperature * log(static_cast<double>(min_p));
    const float rounded = static_cast<float>(threshold);
    min_p_key = order_key(rounded) + (rounded < threshold ? 1 : 0);
  }
  return {scale_high, static_cast<float>(scale - scale_high), min_p_key, draw};
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
  const float t = temperature[slot], p = top_p[slot];
  const int k = top_k[slot];

  if (token >= 0 && t >= 1e-5f && k != 1) {
    const float peak = key_logit(extent.top_key);
    if (threadIdx.x == 0) {
      const PhiloxWords counter = {{static_cast<unsigned>(sample_positions[row]),
                                    static_cast<unsigned>(sample_index[slot]), kUseSample, 0}};
      const PhiloxWords words = philox4x32_10(counter, seeds[2 * slot], seeds[2 * slot + 1]);
      parameters = draw_parameters(peak, t, min_p[slot], words.w[0] >> 8);
    }
    __syncthreads();
    const Weight weight = {peak, parameters.scale_high, parameters.scale_low};
    Prefix kept = {parameters.min_p_key, kHighestInt};
    const float span = peak - key_logit(extent.bottom_key);
    if (k > 0) {
      kept = shortest_prefix<float, kWidth>(
          logits, vocab, extent, kept, span, CountOne{}, [&](Sum) { return Sum(k); }, scratch);
    }
    if (p < 1.0f) {
      auto goal = [&](Sum total) {
        const Sum wanted = static_cast<Sum>(ceil(static_cast<double>(p) * total));
        return wanted > 0 ? wanted : Sum(1);
      };
      kept = shortest_prefix<float, kWidth>(
          logits, vocab, extent, kept, fminf(span, kSpanTemperatures * t), weight, goal, scratch);
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
