// Layers of blocks that meet in memory, right and with one mistake each, for the tests of the emulation.
//
// A layer makes of each value the mean of the four behind its own four, but the first layer of a launch; then
// the same again, plus gain.
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
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int blocks = gridDim.x + (kMistake == kOneMore) - (kMistake == kOneShort);
  for (int layer = 0; layer < layers.count; ++layer) {
    const PlantedLayer<T>& own = layers.of[layer];
    T* const h = row_of<T>(own.here);
    T* const middle = h + n;
    T* const next_h = row_of<T>(own.next_place);

    T value = from_float<T>(0.0f);
    if (layer == 0) {
      value = x[i];
    } else {
      value = from_float<T>(mean_of<T, kNone>(row_of<T>(layers.of[layer - 1].here), i, n));
    }
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
