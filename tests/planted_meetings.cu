// Layers of blocks that meet in memory, right and with one mistake each, for the tests of the emulation; and a
// warp that polls.
//
// A layer makes of each value the mean of the four behind its own four; then the same again, plus gain.
#include "common.cuh"
#include "meeting.cuh"
#include "stack.cuh"

template <typename T>
struct PlantedLayer {
  const T* gain;
  int *here, *next_place;
};

enum Mistake {
  kNone,
  kNoClear,
  kClearsBehind,
  kDoesNotRelease,
  kDoesNotAcquire,
  kNoBarrierBefore,
  kNoBarrierAfter,
  kLooksOnce,
  kOtherSize,
  kPlainLoad,
  kPlainStore,
  kOneShort,
  kOneMore,
  kCountStays,
  kAllOnes,
  kReturnsEarly,
};

// A place: 16 words with counts in the first and the ninth, then the rows h and middle.
template <typename T>
__device__ T* row_of(int* place) {
  return reinterpret_cast<T*>(place + 16);
}

// The mean of the four values behind those that i belongs to.
template <typename T, int kMistake>
__device__ float mean_of(const T* row, int i, int n) {
  const T* const from = row + (i / 4 * 4 + 4) % n;
  Looked<T, 4> found = look<4>(from);
  if constexpr (kMistake == kOtherSize && sizeof(T) == 2) {
    *reinterpret_cast<PlaceWords<2>*>(&found) = look<2>(reinterpret_cast<const int*>(from));
  }
  if constexpr (kMistake != kLooksOnce) look_until_there(found, from);
  if constexpr (kMistake == kPlainLoad) found.v[0] = *reinterpret_cast<const int*>(from);
  const Pack<T, 4> values = *reinterpret_cast<const Pack<T, 4>*>(&found);
  float sum = 0.0f;
  for (int k = 0; k < 4; ++k) sum += to_float(values.v[k]);
  return sum * 0.25f;
}

template <typename T, int kMistake>
__global__ void planted_meetings(
    const __grid_constant__ Stack<PlantedLayer<T>> layers,
    T* __restrict__ out,  // [n]
    const T* x,           // [n]
    int n) {
  wait_for_previous_kernel();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int blocks = gridDim.x + (kMistake == kOneMore) - (kMistake == kOneShort);
  for (int layer = 0; layer < layers.count; ++layer) {
    const PlantedLayer<T>& own = layers.of[layer];
    T* const h = row_of<T>(own.here);
    T* const middle = h + n;
    T* const next_h = row_of<T>(own.next_place);

    float mean = 0.0f;
    if (layer == 0) {
      for (int k = 0; k < 4; ++k) mean += 0.25f * to_float(x[(i / 4 * 4 + 4) % n + k]);
    } else {
      mean = mean_of<T, kNone>(row_of<T>(layers.of[layer - 1].here), i, n);
    }
    T value = from_float<T>(mean);
    if constexpr (kMistake == kAllOnes) {
      for (int k = 0; k < sizeof(T); ++k) reinterpret_cast<unsigned char*>(&value)[k] = 0xff;
    }
    if constexpr (kMistake == kPlainStore) {
      middle[i] = value;
    } else {
      put(middle + i, value);
    }
    if constexpr (kMistake != kNoBarrierAfter) {  // a hint, which may be left out
      __syncthreads();
      if (threadIdx.x == 0) {
        arrive(own.here + 8);
        wait_for_arrivals(own.here + 8, blocks);
      }
      __syncthreads();
    }

    const float sum = mean_of<T, kMistake>(middle, i, n) + to_float(own.gain[i]);
    const bool is_last = layer == layers.count - 1;
    if (is_last) {
      out[i] = from_float<T>(sum);
    } else {
      put(h + i, from_float<T>(sum));
    }
    if constexpr (kMistake == kClearsBehind) {
      T* const row = row_of<T>(layers.of[layer > 0 ? layer - 1 : 0].next_place);
      clear(row + i);
      clear(row + n + i);
    } else if constexpr (kMistake != kNoClear) {
      clear(next_h + i);
      clear(next_h + n + i);
    }
    if (i == 0) {
      clear_count(own.next_place + 8);
      if constexpr (kMistake != kCountStays) clear_count(own.next_place);
    }
    if (is_last || (kMistake == kReturnsEarly && blockIdx.x == 1)) return;
    if constexpr (kMistake != kNoBarrierBefore) __syncthreads();
    if (threadIdx.x == 0) {
      if constexpr (kMistake == kDoesNotRelease) {
        arrive(own.here);
      } else {
        arrive_releasing(own.here);
      }
      if constexpr (kMistake == kDoesNotAcquire) {
        wait_for_arrivals(own.here, blocks);
      } else {
        wait_for_arrivals_acquiring(own.here, blocks);
      }
    }
    if constexpr (kMistake != kNoBarrierAfter) __syncthreads();
  }
}

// A warp copies words into a ring of two places, as another allows and has used them; neither waits.
template <bool kAllows>
__global__ void planted_polls(float* __restrict__ out, const float* x, int count) {
  extern __shared__ __align__(128) unsigned char smem[];
  __shared__ int allowed;
  const unsigned places = shared_address(smem), full = places + 256, empty = full + 16;
  x += 32 * count * blockIdx.x;
  out += 32 * count * blockIdx.x;
  if (threadIdx.x == 0) {
    allowed = 0;
    for (int i = 0; i < 4; ++i) mbarrier_init(full + 8 * i, 1);
    mbarrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x >= 32) {
    const int lane = threadIdx.x % 32;
    int n = 0;
    while (__any_sync(0xffffffffu, lane == 0 && n < count)) {
      const int most = load_hint(&allowed);
      const bool is_free = mbarrier_has_ended(empty + 8 * (n % 2), n / 2 % 2 ^ 1);
      if (lane == 0 && n < count && n < most && is_free) {
        mbarrier_arrive_expecting(full + 8 * (n % 2), 128);
        copy_bytes(places + 128 * (n % 2), x + 32 * n, 128, full + 8 * (n % 2));
        ++n;
      }
    }
    return;
  }
  for (int n = 0; n < count; ++n) {
    if (kAllows && threadIdx.x == 0) store_hint(&allowed, n + 1);
    mbarrier_wait(full + 8 * (n % 2), n / 2 % 2);
    out[32 * n + threadIdx.x] = reinterpret_cast<const float*>(smem)[32 * (n % 2) + threadIdx.x];
    __syncwarp();
    if (threadIdx.x == 0) mbarrier_arrive(empty + 8 * (n % 2));
  }
}

// Each block puts what it has for the next one, four values at a time, and reads what it has got.
template <typename T, int kOff>
__global__ void planted_fours(T* __restrict__ out, int* place, const T* x, int n) {
  wait_for_previous_kernel();
  const int at = 4 * (blockIdx.x * blockDim.x + threadIdx.x), next = (at + 4 * blockDim.x) % n;
  T* const rows = reinterpret_cast<T*>(place);
  T values[4];
  for (int k = 0; k < 4; ++k) values[k] = x[at + k];
  put_four(rows + next + kOff, values);
  clear_four(rows + n + at);
  Looked<T, 4> found = look<4>(rows + at);
  look_until_there(found, rows + at);
  memcpy(values, &found, sizeof(values));
  for (int k = 0; k < 4; ++k) out[at + k] = values[k];
}
