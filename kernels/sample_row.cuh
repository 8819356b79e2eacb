// How a row of logits is sampled, by whichever blocks: what it asks for, its weights, the bins that its
// filters' prefixes end in, its draw. No kernel lives here.
#pragma once
#include "philox.cuh"
#include "ptx.cuh"
#include "shortest_prefix.cuh"

// What a row asks for.
struct Request {
  int* counted;  // [vocab] of its token_counts; null where the token is not counted
  int is_live, is_drawn, top_k;
  float temperature, top_p, min_p;
  unsigned draw;  // 24 bits
  int unused;
};

// What the sequences ask for, by their slots.
struct Asked {
  int* token_counts;                // [slots, vocab]
  const float* repetition_penalty;  // [slots]
  const float* presence_penalty;    // [slots]
  const float* frequency_penalty;   // [slots]
  const int* bias_ids;              // [slots, max_bias]
  const float* bias_values;         // [slots, max_bias]
  const int* stop_ids;              // [slots, max_stop_ids]
  const int* min_position;          // [slots]
  const float* temperature;         // [slots]
  const int* top_k;                 // [slots]
  const float* top_p;               // [slots]
  const float* min_p;               // [slots]
  const unsigned* seeds;            // [slots, 2]
  const int* sample_index;          // [slots]
  const int* count_tokens;          // [slots]
  int vocab, max_bias, max_stop_ids;

  __device__ __forceinline__ int* counts(int slot) const {
    return token_counts + static_cast<long long>(slot) * vocab;
  }
  // The row whose sequence is in `slot` and whose token will stand at `position`.
  template <typename T>
  __device__ __forceinline__ Row<T> row(const T* logits, int slot, int position) const {
    const int* biased = bias_ids + static_cast<long long>(slot) * max_bias;
    const float repetition = repetition_penalty[slot];
    const float presence = presence_penalty[slot], frequency = frequency_penalty[slot];
    const bool is_penalised = repetition != 1.0f || presence != 0.0f || frequency != 0.0f;
    Row<T> row;
    row.logits = logits;
    row.token_counts = is_penalised ? counts(slot) : nullptr;
    row.bias_ids = biased[0] >= 0 ? biased : nullptr;
    row.bias_values = bias_values + static_cast<long long>(slot) * max_bias;
    row.stop_ids = position < min_position[slot]
                       ? stop_ids + static_cast<long long>(slot) * max_stop_ids
                       : nullptr;
    row.repetition = repetition;
    row.presence = presence;
    row.frequency = frequency;
    row.vocab = vocab;
    row.max_bias = max_bias;
    row.max_stop_ids = max_stop_ids;
    return row;
  }
  __device__ __forceinline__ bool is_drawn(int slot) const {
    return temperature[slot] >= 1e-5f && top_k[slot] != 1;
  }
  __device__ __forceinline__ Request request(int slot, int position) const {
    const bool drawn = is_drawn(slot);
    unsigned draw = 0;
    if (drawn) {
      const PhiloxWords counter = {{static_cast<unsigned>(position),
                                    static_cast<unsigned>(sample_index[slot]), kUseSample, 0}};
      draw = philox4x32_10(counter, seeds[2 * slot], seeds[2 * slot + 1]).w[0] >> 8;
    }
    return {count_tokens[slot] != 0 ? counts(slot) : nullptr,
            1,
            drawn,
            top_k[slot],
            temperature[slot],
            top_p[slot],
            min_p[slot],
            draw,
            0};
  }
};

struct Weight {
  float peak, scale_high, scale_low;  // scale_high + scale_low is log2(e) / temperature

  __device__ __forceinline__ Fixed operator()(float logit) const {
    const float x = fminf(peak - logit, 1e30f);
    return Fixed::of(exp2_approx(-fmaf(x, scale_high, x * scale_low)));
  }
};

// Which bin of the filters' sums a token is in: bins of equal width below the peak, the last one open.
// Monotone: a token that is later in the order has no lower place, and so is in no earlier bin.
struct Places {
  float peak, scale;

  __device__ __forceinline__ float operator()(float logit) const {
    return fminf((peak - logit) * scale, kBins - 1.0f);
  }
  // The place as a whole number, to the nearest.
  static __device__ __forceinline__ int bin(float place) {
    return __float_as_int(place + 8388608.0f) - 0x4b000000;
  }
  // The lowest place that is in `bin` or after it; above all places if there is no such bin.
  static __device__ __forceinline__ float edge(int bin) {
    if (bin == 0) return 0.0f;
    const float middle = static_cast<float>(bin) - 0.5f;  // is rounded to the even one of its bins
    return (bin & 1) != 0 ? __int_as_float(__float_as_int(middle) + 1) : middle;
  }
};

// How a row is drawn, in part computed in float64.
struct Draw {
  int is_drawn, is_filtered;  // not drawn: the likeliest token, or no distribution
  float min_logit;            // the lowest that min_p keeps
  Weight weight;
  Places places;
};

// In which bins the filters' prefixes end.
struct Ends {
  int k_bin;             // of the last token that top_k keeps; kBins: it keeps all
  int first, last;       // between these top_p's last token is; kBins: it keeps all
  unsigned k_left;       // tokens of k_bin that top_k keeps
  Sum k_before, before;  // sums of the bins in front of k_bin, of `first`
  Sum all;               // of all bins
};

// The weight or number of tokens that a prefix must reach to have a share `top_p` of `total`.
__device__ __forceinline__ Sum share_of_prefix(Sum total, float top_p) {
  const Sum wanted = static_cast<Sum>(ceil(static_cast<double>(top_p) * total));
  return wanted > 0 ? wanted : Sum(1);
}

// draw / 2^24 of the total, rounded down. The total is below 2^56.
__device__ __forceinline__ Sum share_of_draw(Sum total, unsigned draw) {
  return ((total >> 32) * draw << 8) + ((total & 0xffffffffu) * draw >> 24);
}

__device__ __forceinline__ Draw drawing(const Request& request, Extent extent, float floor) {
  Draw draw;
  const float peak = key_logit(extent.top_key), t = request.temperature;
  // log2(e) / temperature to some 48 bits: a float64 division would spill registers.
  const double inverse = __fdividef(1.0f, t);
  const double scale = 1.4426950408889634 * inverse * (2.0 - t * inverse);
  draw.is_drawn = 1;
  draw.is_filtered = request.top_k > 0 || request.top_p < 1.0f;
  draw.weight.peak = peak;
  draw.weight.scale_high = static_cast<float>(scale);
  draw.weight.scale_low = static_cast<float>(scale - draw.weight.scale_high);
  draw.min_logit = key_logit(-kInfinityKey);
  if (request.min_p > 0.0f) {
    const double threshold = peak + t * log(static_cast<double>(request.min_p));
    const float rounded = static_cast<float>(threshold);
    draw.min_logit = key_logit(order_key(rounded) + (rounded < threshold ? 1 : 0));
  }
  // The floor is not in the last bin: a prefix may end there, and below it are most tokens.
  const float span = peak - fmaxf(floor, key_logit(extent.bottom_key));
  const float places_scale = __fdividef(kBins - 8.0f, span);
  draw.places.peak = peak;
  draw.places.scale = span > 0.0f && places_scale < 1e30f ? places_scale : 0.0f;
  return draw;
}

// Finds the bins in which the prefixes end, by the weight and the number of tokens of the bin that is this
// thread's, where there is one; `scan` is a block_scan. All threads of the block call it.
template <typename BlockScan>
__device__ __forceinline__ Ends
find_ends(const Request& request, Sum weight, Sum count, BlockScan scan) {
  __shared__ Ends ends;
  const int bin = threadIdx.x, k = request.top_k;
  const float top_p = request.top_p;
  if (threadIdx.x == 0) ends = {kBins, kBins, kBins, 0, 0, 0, 0};
  const Scan sums = scan(weight);  // its barriers: the ends are set
  if (threadIdx.x == 0) ends.all = sums.total;
  Sum least = sums.total, most = sums.total;  // that top_k keeps
  if (k > 0) {
    const Sum reached = scan(count).reached;
    if (reached >= k && reached - count < k) {
      ends.k_bin = bin;
      ends.k_left = static_cast<unsigned>(k - (reached - count));
      ends.k_before = sums.reached - weight;
      ends.before = sums.reached;
    }
    __syncthreads();
    if (ends.k_bin < kBins) {
      least = ends.k_before;
      most = ends.before;
    }
    __syncthreads();
  }
  if (top_p < 1.0f) {
    const Sum before = sums.reached - weight;
    const Sum first = share_of_prefix(least, top_p), last = share_of_prefix(most, top_p);
    if (before < first && sums.reached >= first) {
      ends.first = bin;
      ends.before = before;
    }
    if (before < last && sums.reached >= last) ends.last = bin;
  }
  __syncthreads();
  return ends;
}

// What the filters keep of a row that one block has to itself, and its chunks' sums: where there are more
// candidates than are sorted. All threads of the block call it.
template <typename T, int kWidth>
__device__ __forceinline__ Prefix end_of_filters_in_row(
    const Row<T>& row, const Request& request, const Draw& draw, Extent extent, RowScratch& s) {
  const int top_k = request.top_k;
  const float top_p = request.top_p;
  Prefix kept = {order_key(draw.min_logit), kHighestInt};
#pragma unroll 1  // both filters in one copy of the code
  for (int filter = 0; filter < 2; ++filter) {
    const bool is_top_k = filter == 0;
    if (is_top_k ? top_k <= 0 : top_p >= 1.0f) continue;
    kept = shortest_prefix<T, kWidth>(
        row, kept, extent, [&](float logit) { return is_top_k ? Fixed{0, 1} : draw.weight(logit); },
        [&](Sum total) {
          return is_top_k ? static_cast<Sum>(top_k) : share_of_prefix(total, top_p);
        },
        s);
  }
  sum_chunks<T, kWidth>(
      row,
      [&](float logit, int id) {
        return kept.holds(order_key(logit), id) ? draw.weight(logit) : Fixed{0, 0};
      },
      s);
  return kept;
}
