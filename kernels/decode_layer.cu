// decode_layer: one layer of a decode step of one row, or several: a launch takes a stack of them.
//               y = rms_norm(x, gain); q, k, v = qkv y, q and k rotated, k and v stored in the cache;
//               mid = x + o attention(q); out = mid + down (silu(g) * u) with g, u = gate_up rms_norm(mid, gain2)
//
// Rounds to T where the ops that it stands for store: rms_norm, linear, rope_append, paged_decode_attention, add,
// silu_and_mul. Sums in float32, each in an order that depends on sizes and on the row's length alone. A dead
// row (length 0) stores no k and v, and attends to nothing, which gives zeros.
//
// All blocks run at once, one on a multiprocessor. Between two products they hand the row to each other
// through memory (layer_place.cuh), while the weights that follow are under way (layer_ring.cuh): who waits
// for a row looks at a count first, by one thread, and then at the values themselves. A block keeps the row
// that its products are added to in shared memory. See layer_attention.cuh for attention.
//
// That is for sm_90a. Elsewhere the launches follow each other that this one stands for.
#include "linear_add.cu"
#include "norm_rope_append.cu"
#include "norm_swiglu.cu"
#include "paged_decode_attention.cu"
#include "silu.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(CPU_EMU)  // sm_90a
#include "layer_attention.cuh"
#include "phase_stamps.cuh"

// The warps that multiply, in one layer after the other.
template <typename T, typename Sizes>
struct LayerWorker {
  using Place = LayerPlace<T, Sizes>;
  using Ring = WarpRing<T, Sizes>;
  static constexpr int kHidden = Sizes::kHidden, kInter = Sizes::kInter;
  // Elements of what a lane looks at by one load: of 8 bytes, so that what a warp looks at is adjacent.
  static constexpr int kVector = 4;
  static constexpr int kLoads = (kHidden / kVector + Sizes::kThreads - 1) / Sizes::kThreads;
  using Vector = Pack<T, kVector>;

  // Shared memory: what is multiplied, and in attention what warps find; the row as it comes in and after
  // attention; then the rings.
  static constexpr int kWidest = kInter > Sizes::kQ ? kInter : Sizes::kQ;
  static constexpr int kValueBytes = sizeof(T) * (kWidest > kHidden ? kWidest : kHidden);
  static constexpr int kFoundBytes = LayerAttention<T, Sizes>::kFoundBytes;
  static constexpr int kFirstBytes = kValueBytes > kFoundBytes ? kValueBytes : kFoundBytes;
  static constexpr int kRowsBytes = (kFirstBytes + 2 * sizeof(T) * kHidden + 127) / 128 * 128;

  T *values, *row, *mid;
  int* current;
  Ring ring;
  Vector gains[kLoads];

  __device__ __forceinline__ void load_gains(const T* gain) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = i * Sizes::kThreads + threadIdx.x;
      if (has_vector<kHidden / kVector>(i)) gains[i] = reinterpret_cast<const Vector*>(gain)[at];
    }
  }

  // Whether a thread has an i-th vector of so many. Of most rows all have as many, which is known to the compiler: what
  // is loaded conditionally would keep its registers through all of a layer.
  template <int kVectors>
  static __device__ __forceinline__ bool has_vector(int i) {
    if (kVectors % Sizes::kThreads == 0) return i < kVectors / Sizes::kThreads;
    return i * Sizes::kThreads + threadIdx.x < kVectors;
  }

  // Puts a row that others have put into shared memory: at `values`, in the order of fragments.
  template <int kColumns>
  __device__ __forceinline__ void take_row(const T* from) {
    constexpr int kVectors = kColumns / kVector, kBatch = 8;  // loads of a thread at once
    constexpr int kMost = (kVectors + Sizes::kThreads - 1) / Sizes::kThreads;
#pragma unroll
    for (int begin = 0; begin < kMost; begin += kBatch) {
      Looked<T, kVector> found[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = (begin + i) * Sizes::kThreads + threadIdx.x;
        if (has_vector<kVectors>(begin + i)) found[i] = look<kVector>(from + at * kVector);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = (begin + i) * Sizes::kThreads + threadIdx.x;
        if (!has_vector<kVectors>(begin + i)) continue;
        look_until_there(found[i], from + at * kVector);
        Ring::store_x(values, at, found[i].v);
      }
    }
    sync_block<Sizes>();
  }
  // Puts a row into shared memory: as it is at `raw`, normalised at `values`, in the order of fragments. It comes
  // from others, or is the launch's own x.
  __device__ __forceinline__ void normalise(T* raw, const T* from, bool is_x, float eps) {
    __shared__ float partial[Sizes::kWarps];
    Looked<T, kVector> held[kLoads];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = i * Sizes::kThreads + threadIdx.x;
      if (!has_vector<kHidden / kVector>(i)) continue;
      if (is_x) {
        held[i] = reinterpret_cast<const Looked<T, kVector>*>(from)[at];
      } else {
        held[i] = look<kVector>(from + at * kVector);
      }
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = i * Sizes::kThreads + threadIdx.x;
      if (!has_vector<kHidden / kVector>(i)) continue;
      if (!is_x) look_until_there(held[i], from + at * kVector);
      reinterpret_cast<Looked<T, kVector>*>(raw)[at] = held[i];
      Vector elements;
      memcpy(&elements, &held[i], sizeof(elements));
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        squares = fmaf(to_float(elements.v[k]), to_float(elements.v[k]), squares);
      }
    }
    squares = lanes_sum<32>(squares);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = squares;
    sync_block<Sizes>();
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < Sizes::kWarps; ++w) total += partial[w];
    const float scale = rsqrtf(total / kHidden + eps);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = i * Sizes::kThreads + threadIdx.x;
      if (!has_vector<kHidden / kVector>(i)) continue;
      Vector elements;
      memcpy(&elements, &held[i], sizeof(elements));
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const float own = to_float(elements.v[k]) * scale * to_float(gains[i].v[k]);
        elements.v[k] = from_float<T>(own);
      }
      memcpy(&held[i], &elements, sizeof(elements));
      Ring::store_x(values, at, held[i].v);
    }
    sync_block<Sizes>();
  }

  // The block is in this phase: what comes of it may come as fast as it can.
  __device__ __forceinline__ void enter(int layer, Phase phase) {
    if (threadIdx.x == 0) store_hint(current, layer * kPhases + phase);
    note_phase_begin(layer * kPhases + phase);
  }
  static __device__ __forceinline__ void leave(int layer, Phase phase) {
    note_phase_end(layer * kPhases + phase);
  }

  __device__ __forceinline__ void make_qkv(const Place& here, const Place& next, int warp) {
    const Share share = qkv_share<Sizes>(warp);
    ring.template multiply_rows<Sizes::kQkvAtOnce, kHidden / Sizes::kPiece>(
        Sizes::kQkvRows, values, [&](int begun, int, const float (&sums)[Sizes::kQkvAtOnce]) {
          const int lane = threadIdx.x % 32;
          if (lane < Sizes::kQkvAtOnce) {
            const int at = qkv_row<Sizes>(share.first + begun + lane);
            const float own = Ring::sum_of_lane(sums);
            put_and_clear(here.qkv() + at, next.qkv() + at, from_float<T>(own));
          }
        });
  }
  // A product that is added to a row in shared memory: finish(column, sum) for this warp's columns.
  template <int kInFeatures, typename Finish>
  __device__ __forceinline__ void add_product(
      const Share& share, const T* raw, const Finish& finish) {
    ring.template multiply_rows<Sizes::kHiddenAtOnce, kInFeatures / Sizes::kPiece>(
        share.count, values,
        [&](int begun, int together, const float (&sums)[Sizes::kHiddenAtOnce]) {
          const int lane = threadIdx.x % 32;
          if (lane < together) {
            const int column = share.first + begun + lane;
            const T product = from_float<T>(Ring::sum_of_lane(sums));
            finish(column, from_float<T>(to_float(raw[column]) + to_float(product)));
          }
        });
  }
  __device__ __forceinline__ void make_act(
      const Share& share, const Place& here, const Place& next) {
    ring.template multiply_rows<Sizes::kGatesAtOnce, kHidden / Sizes::kPiece>(
        share.count * 2, values, [&](int begun, int, const float (&sums)[Sizes::kGatesAtOnce]) {
          if (threadIdx.x % 32 == 0) {
            const int at = share.first + begun / 2;
            put_and_clear(here.act() + at, next.act() + at, gated<T>(sums[0], sums[1]));
          }
        });
  }
};

template <typename T, typename Sizes>
__global__ void __launch_bounds__(Sizes::kThreads + 32, 1) decode_layer(
    const __grid_constant__ Stack<DecodeLayer<T>> layers,
    T* out,                             // [1, hidden], of the last layer
    const T* x,                         // [1, hidden], of the first one
    const float* __restrict__ cos_sin,  // [max_position, head_dim]: cosines, then sines
    const int* block_tables,            // [slots, max_blocks]
    const int* row_ids,                 // [1]
    const int* seq_lens,                // [1]
    int max_blocks,
    int block_shift,  // a block of the cache is 2^block_shift pieces of 16 tokens
    float eps,
    float scale_log2) {  // scale * log2(e)
  using Worker = LayerWorker<T, Sizes>;
  using Place = LayerPlace<T, Sizes>;
  using Attention = LayerAttention<T, Sizes>;
  constexpr int kHidden = Sizes::kHidden;
  extern __shared__ __align__(128) unsigned char smem[];
  __shared__ int current;
  const LayerRings<T, Sizes> rings{smem + Worker::kRowsBytes};
  if (threadIdx.x == 0) {
    store_hint(&current, kQkvPhase);
    rings.init();
  }
  __syncthreads();
  const auto tokens_of_row = [&] {
    return TokenPieces<Sizes>(block_tables, row_ids, seq_lens, max_blocks, block_shift);
  };
  int warp = threadIdx.x / 32;
  if (warp == Sizes::kWarps) {
    copy_layers(layers, rings, &current, tokens_of_row);
    start_next_kernel();
    return;
  }
  T* const rows = reinterpret_cast<T*>(smem + Worker::kFirstBytes);
  Worker worker{reinterpret_cast<T*>(smem), rows, rows + kHidden, &current, {rings, warp}};
  worker.load_gains(layers.of[0].gain);
  wait_for_previous_kernel();
  begin_phases();
  const TokenPieces<Sizes> tokens = tokens_of_row();
  __shared__ __align__(16) unsigned char of_newest[sizeof(NewestToken<T, Sizes>)];
  auto& newest = *reinterpret_cast<NewestToken<T, Sizes>*>(of_newest);
  newest.fill(tokens, cos_sin);
  const Attention attention{tokens, newest, scale_log2};

  const int count = static_cast<int>(layers.count);
#pragma unroll 1
  for (int layer = 0; layer < count; ++layer) {
    // Registers are few: what follows from this is worked out anew in each layer.
    work_out_anew(warp);
    const Share of_hidden = share_of<Sizes>(kHidden, warp);
    const Share of_inter = share_of<Sizes>(Sizes::kInter, warp);
    const DecodeLayer<T>& own = layers.of[layer];
    const Place here{own.here}, next{own.next_place};
    const bool is_first = layer == 0, is_last = layer == count - 1;
    const bool makes_qkv = rank_in_head<Sizes>() < Sizes::kHeadBlocks;

    const T* const before = is_first ? x : Place{layers.of[layer - 1].here}.out();
    worker.normalise(worker.row, before, is_first, eps);
    worker.enter(layer, kQkvPhase);
    if (makes_qkv) {
      worker.make_qkv(here, next, warp);
      arrive_at<Sizes>(here.count(Place::kQkvCount + kv_head_of_block<Sizes>()));
      worker.leave(layer, kQkvPhase);
      worker.enter(layer, kAttentionPhase);
    }
    worker.load_gains(own.gain2);
    if (tokens.attends()) {
      attention.run(worker.ring, own, here, next, reinterpret_cast<float*>(smem), warp);
      worker.leave(layer, kAttentionPhase);
    }
    if (makes_qkv) Attention::clear_parts(next, warp);
    if (blockIdx.x == 0) {
#pragma unroll 1
      for (int i = threadIdx.x; i < Place::kCounts; i += Sizes::kThreads)
        clear_count(next.count(i));
    }

    wait_at<Sizes>(here.count(Place::kAttendedCount), Sizes::kKvHeads);
    worker.template take_row<Sizes::kQ>(here.attended());
    worker.enter(layer, kOPhase);
    worker.template add_product<Sizes::kQ>(of_hidden, worker.row, [&](int column, T sum) {
      put_and_clear(here.mid() + column, next.mid() + column, sum);
    });
    arrive_at<Sizes>(here.count(Place::kMidCount));
    worker.leave(layer, kOPhase);

    wait_at<Sizes>(here.count(Place::kMidCount), Sizes::kBlocks);
    worker.normalise(worker.mid, here.mid(), false, eps);
    worker.enter(layer, kGatesPhase);
    worker.make_act(of_inter, here, next);
    arrive_at<Sizes>(here.count(Place::kActCount));
    worker.leave(layer, kGatesPhase);
    if (!is_last) worker.load_gains(layers.of[layer + 1].gain);

    wait_at<Sizes>(here.count(Place::kActCount), Sizes::kBlocks);
    worker.template take_row<Sizes::kInter>(here.act());
    worker.enter(layer, kDownPhase);
    if (is_last) start_next_kernel();
    worker.template add_product<Sizes::kInter>(of_hidden, worker.mid, [&](int column, T sum) {
      clear(next.out() + column);
      if (is_last) {
        out[column] = sum;
      } else {
        put(here.out() + column, sum);
      }
    });
    worker.leave(layer, kDownPhase);
    if (is_last) return;
    meet_at<Sizes>(here.count(Place::kOutCount));
  }
}
#endif
