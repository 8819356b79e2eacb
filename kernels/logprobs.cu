// logprobs: l - m - log(sum(exp(l - m))), m = max(l), of a target token and of the likeliest tokens;
// and the target's rank, 1 + the number of tokens before it in the order (logit desc, id asc)
//
// Sums in float32 in a fixed order, whatever blocks share a row; one rounding at the store. Three
// launches: logprobs_extents and logprobs_sums have blockIdx.y as the row and chunks of it in turns,
// and read it once each; logprobs_list, a block a row, adds up what they found. A row that wants
// nothing (num_logprobs -1, or no target) leaves at once. Few rows have one launch on sm_90a.
#include "ptx.cuh"
#include "row_cluster.cuh"
#include "shortest_prefix.cuh"

// What the launches hand on of a row.
struct ListWork {
  GroupExtents extents;
  float group_sums[kMaxGroups];
  int groups_before[kMaxGroups];  // tokens up to the target
  Sum candidates[kMaxCandidates];
  int num_candidates, unused;
};

static_assert(sizeof(ListWork) <= 43 * 1024, "what logprobs.py reserves");

// What a row wants: a target, and so many of the likeliest tokens; -1 is nothing at all.
struct Wanted {
  int target, count;

  __device__ __forceinline__ Wanted(
      const int* token_ids,
      const int* target_ids,
      const int* num_logprobs,
      int row,
      int vocab,
      int max_logprobs) {
    target = target_ids[row] >= 0 ? target_ids[row] : token_ids[row];
    count = min(min(num_logprobs[row], max_logprobs), vocab);
    if (target < 0) count = -1;
  }
};

template <typename T>
__device__ __forceinline__ Row<T> plain_row(const T* logits, int row, int vocab) {
  const T* row_logits = logits + static_cast<long long>(row) * vocab;
  return {row_logits, nullptr, nullptr, nullptr, nullptr, 1.0f, 0.0f, 0.0f, vocab, 0, 0};
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, kWidth > 1 ? 2 : 1) logprobs_extents(
    const T* logits,           // [rows, vocab]
    const int* token_ids,      // [rows]
    const int* target_ids,     // [rows]
    const int* num_logprobs,   // [rows]
    unsigned char* workspace,  // ListWork [rows]
    int vocab,
    int max_logprobs) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int row_index = blockIdx.y;
  const Wanted wanted(token_ids, target_ids, num_logprobs, row_index, vocab, max_logprobs);
  if (wanted.count < 0) return;
  ListWork& work = reinterpret_cast<ListWork*>(workspace)[row_index];
  if (blockIdx.x == 0 && threadIdx.x == 0) work.num_candidates = 0;
  const Row<T> row = plain_row(logits, row_index, vocab);
  Vectors<T, kWidth> vectors;
  vectors.load(row.logits, vocab, blockIdx.x);
  for_each_chunk_ahead(
      row, vectors, [&](const Chunk<T, kWidth>& chunk) { work.extents.set(chunk); });
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, kWidth > 1 ? 2 : 1) logprobs_sums(
    const T* logits,           // [rows, vocab]
    const int* token_ids,      // [rows]
    const int* target_ids,     // [rows]
    const int* num_logprobs,   // [rows]
    unsigned char* workspace,  // ListWork [rows]
    int vocab,
    int max_logprobs) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int row_index = blockIdx.y;
  const Wanted wanted(token_ids, target_ids, num_logprobs, row_index, vocab, max_logprobs);
  if (wanted.count < 0) return;
  ListWork& work = reinterpret_cast<ListWork*>(workspace)[row_index];
  const Row<T> row = plain_row(logits, row_index, vocab);
  const Extent own = work.extents.own(row.num_chunks());
  const Extent extent = block_extent(own);
  if (extent.is_broken()) return;
  const float peak = key_logit(extent.top_key);
  const Prefix up_to_target = {order_key(to_float(row.logits[wanted.target])), wanted.target};
  // All that are listed are among the candidates, which are not below it.
  float floor = 0.0f;
  if (wanted.count > 0) floor = floor_of_first(wanted.count, own.top_key, extent);

  for_each_chunk<T, kWidth>(row, [&](const Chunk<T, kWidth>& chunk) {
    float sum = 0.0f;
    int before = 0;
    unsigned chosen = 0;
    chunk.visit([&](float logit, int id, int i) {
      sum += expf(logit - peak);
      before += up_to_target.holds(order_key(logit), id) ? 1 : 0;
      chosen |= logit >= floor ? 1u << i : 0u;
    });
    sum = lanes_sum<32>(sum);
    before = __reduce_add_sync(kAllLanes, before);
    if (lane_index() == 0) {
      work.group_sums[chunk.index * kGroups + warp_index()] = sum;
      work.groups_before[chunk.index * kGroups + warp_index()] = before;
    }
    if (wanted.count > 0) {
      append_candidates(chunk, chosen, &work.num_candidates, work.candidates);
    }
  });
}

// Leaves the `count` first tokens of the row's order in the scratch, sorted. All threads call it.
template <typename T, int kWidth>
__device__ __forceinline__ void sort_likeliest(
    const Row<T>& row,
    const Sum* candidates,
    int num_candidates,
    Extent extent,
    int count,
    RowScratch& s) {
  // A floor of -inf, or ties at it: there may be fewer candidates than that, or too many.
  if (num_candidates < count || num_candidates > kMaxCandidates) {
    const Prefix top = shortest_prefix<T, kWidth>(
        row, {kLowestInt, kHighestInt}, extent, CountOne{},
        [&](Sum) { return static_cast<Sum>(count); }, s);
    if (threadIdx.x == 0) s.num_candidates = 0;
    visit_row<T, kWidth>(
        row,
        [&](float logit, int id) {
          const int key = order_key(logit);
          if (!top.holds(key, id)) return;
          s.candidates[atomicAdd(&s.num_candidates, 1)] = pack_candidate(key, id);
        },
        [](int) {});
    num_candidates = count;
  } else {
    for (int i = threadIdx.x; i < num_candidates; i += kThreads) {
      s.candidates[i] = candidates[i];
    }
  }
  sort_candidates(s, num_candidates);
}

// Where the results of a row go.
struct Report {
  float* target_logprob;  // [1]
  int* target_rank;       // [1]
  int* top_ids;           // [max_logprobs]
  float* top_logprobs;    // [max_logprobs]
  int max_logprobs;

  __device__ __forceinline__ Report(
      float* target_logprobs,
      int* target_ranks,
      int* all_top_ids,
      float* all_top_logprobs,
      int row,
      int max_logprobs)
      : max_logprobs(max_logprobs) {
    const long long at = static_cast<long long>(row) * max_logprobs;
    target_logprob = target_logprobs + row;
    target_rank = target_ranks + row;
    top_ids = all_top_ids + at;
    top_logprobs = all_top_logprobs + at;
  }

  // What is known of the target, and nothing of what comes after the first `listed`.
  __device__ __forceinline__ void end(float logprob, int rank, int listed) const {
    for (int i = listed + threadIdx.x; i < max_logprobs; i += kThreads) {
      top_ids[i] = -1;
      top_logprobs[i] = 0.0f;
    }
    if (threadIdx.x == 0) {
      *target_logprob = logprob;
      *target_rank = rank;
    }
  }

  // Of a row of which the thread knows a group: its sum, and its number of tokens up to the target. All
  // threads of the block call it.
  template <typename T, int kWidth>
  __device__ __forceinline__ void write(
      const Row<T>& row,
      Wanted wanted,
      Extent extent,
      float group_sum,
      int group_before,
      const Sum* candidates,
      int num_candidates,
      RowScratch& s) const {
    const float peak = key_logit(extent.top_key);
    const float log_sum = logf(block_sum<kThreads>(group_sum));
    const Sum before = block_scan<kThreads>(group_before).total;  // the target itself included
    const int listed = wanted.count;
    if (listed > 0) sort_likeliest<T, kWidth>(row, candidates, num_candidates, extent, listed, s);
    for (int i = threadIdx.x; i < listed; i += kThreads) {
      const Sum candidate = s.candidates[i];
      top_ids[i] = candidate_id(candidate);
      top_logprobs[i] = key_logit(candidate_key(candidate)) - peak - log_sum;
    }
    const float target = to_float(row.logits[wanted.target]);
    end(target - peak - log_sum, static_cast<int>(before), listed);
  }

  __device__ __forceinline__ void write_broken() const {
    end(__int_as_float(0x7fc00000), 0, 0);  // NaN
  }
  __device__ __forceinline__ void write_nothing() const { end(0.0f, 0, 0); }
};

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, 1) logprobs_list(
    float* __restrict__ target_logprobs,  // [rows]
    int* __restrict__ target_ranks,       // [rows]
    int* __restrict__ top_ids,            // [rows, max_logprobs]
    float* __restrict__ top_logprobs,     // [rows, max_logprobs]
    const T* logits,                      // [rows, vocab]
    const int* token_ids,                 // [rows]
    const int* target_ids,                // [rows]
    const int* num_logprobs,              // [rows]
    unsigned char* workspace,             // ListWork [rows]
    int vocab,
    int max_logprobs) {
  extern __shared__ __align__(16) unsigned char smem[];
  RowScratch& s = *reinterpret_cast<RowScratch*>(smem);
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int row_index = blockIdx.x;
  const Wanted wanted(token_ids, target_ids, num_logprobs, row_index, vocab, max_logprobs);
  const Report report(
      target_logprobs, target_ranks, top_ids, top_logprobs, row_index, max_logprobs);
  if (wanted.count < 0) {
    report.write_nothing();
    return;
  }
  const ListWork& work = reinterpret_cast<ListWork*>(workspace)[row_index];
  const Row<T> row = plain_row(logits, row_index, vocab);
  const Extent extent = block_extent(work.extents.own(row.num_chunks()));
  if (extent.is_broken()) {
    report.write_broken();
    return;
  }
  const int group = threadIdx.x;
  const bool has_group = group < row.num_chunks() * kGroups;
  report.write<T, kWidth>(
      row, wanted, extent, has_group ? work.group_sums[group] : 0.0f,
      has_group ? work.groups_before[group] : 0, work.candidates, work.num_candidates, s);
}

// The beginning of the dynamic shared memory of one of a cluster's blocks. Behind it lies its part of the
// row, in float32.
struct ListRank {
  // What the other blocks read.
  RankExtent extent;
  RankSum sum;  // of its candidates only their number
  float2 groups
      [kMaxOwnChunks * kGroups];  // the sum, and the number of tokens up to the target, as bits
  Sum candidates[kOwnCandidates];
  // The first block's own.
  Sum gathered[kMaxCandidates];
};

static_assert(sizeof(ListRank) <= 42 * 1024, "what logprobs.py reserves");
static_assert(sizeof(ListRank) % 16 == 0, "the row is read in vectors");

// The same for few rows: a cluster has a row, and its first block lists.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, 1) logprobs_few_rows(
    float* __restrict__ target_logprobs,  // [rows]
    int* __restrict__ target_ranks,       // [rows]
    int* __restrict__ top_ids,            // [rows, max_logprobs]
    float* __restrict__ top_logprobs,     // [rows, max_logprobs]
    const T* logits,                      // [rows, vocab]
    const int* token_ids,                 // [rows]
    const int* target_ids,                // [rows]
    const int* num_logprobs,              // [rows]
    int vocab,
    int max_logprobs,
    int run_bits) {  // a thread has 1 << run_bits tokens
  extern __shared__ __align__(16) unsigned char smem[];
  ListRank& s = *reinterpret_cast<ListRank*>(smem);
  const PartTile tile = {reinterpret_cast<float*>(smem + sizeof(ListRank)), run_bits};
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int row_index = blockIdx.y, block = blockIdx.x;
  const int block_tokens = kThreads << run_bits, begin = block * block_tokens;
  const Wanted wanted(token_ids, target_ids, num_logprobs, row_index, vocab, max_logprobs);
  const Report report(
      target_logprobs, target_ranks, top_ids, top_logprobs, row_index, max_logprobs);
  if (wanted.count < 0) {
    if (block == 0) report.write_nothing();
    return;
  }
  const Row<T> row = plain_row(logits, row_index, vocab);
  PartLoads<T, kWidth> loads;
  loads.load(row.logits, vocab, begin, block_tokens, threadIdx.x * kWidth);
  fill_part(row.logits, vocab, loads, begin, block_tokens, tile);
  Extent own = Extent::nothing();
  tile.visit([&](float logit, int i) { own.include(logit, begin + i); });
  const Extent of_block = block_extent(own);
  const int used = used_ranks(vocab, block_tokens);
  const float share = wanted.count > 0 ? floor_of_share(wanted.count, used, own, of_block) : 0.0f;
  if (threadIdx.x == 0) s.sum = {0, 0, 0};
  tell_extent(s.extent, of_block, share);
  meet();
  int top_key;  // lane r: of block r
  float their_floor;
  const Extent extent = extent_of_ranks(s.extent, top_key, their_floor);
  if (extent.is_broken()) {
    if (block == 0) report.write_broken();
    meet();  // nobody leaves while others read its shared memory
    return;
  }
  const float peak = key_logit(extent.top_key), floor = lowest_of_ranks(their_floor, used);
  const Prefix up_to_target = {order_key(to_float(row.logits[wanted.target])), wanted.target};
#pragma unroll 1
  for (int chunk = 0; chunk < block_tokens; chunk += kChunk) {
    float sum = 0.0f;
    int before = 0;
#pragma unroll 2
    for (int v = 0; v < kChunk / kThreads / kWidth; ++v) {  // the order in which sums are added
      const int first = chunk + (v * kThreads + static_cast<int>(threadIdx.x)) * kWidth;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const float logit = tile[first + k];
        const int id = begin + first + k;
        sum += expf(logit - peak);
        before += up_to_target.holds(order_key(logit), id) && id < vocab ? 1 : 0;
        if (wanted.count > 0 && logit >= floor && id < vocab) {
          const int at = atomicAdd(&s.sum.num_candidates, 1);
          if (at < kOwnCandidates) s.candidates[at] = pack_candidate(order_key(logit), id);
        }
      }
    }
    sum = lanes_sum<32>(sum);
    before = __reduce_add_sync(kAllLanes, before);
    if (lane_index() == 0) {
      s.groups[chunk / kChunk * kGroups + warp_index()] = make_float2(sum, __int_as_float(before));
    }
  }
  meet();
  if (block == 0) {
    const RanksSums known(s.sum);
    const bool overflows = __any_sync(kAllLanes, known.theirs > kOwnCandidates);
    const int count = overflows ? kMaxCandidates + 1 : known.all;
    if (count <= kMaxCandidates) gather_candidates(s.candidates, known, s.gathered);
    const int groups = block_tokens / kChunk * kGroups, group = threadIdx.x;  // of a block
    float sum = 0.0f;
    int before = 0;
    if (group < groups * kRanks) {
      float found[2];
      load_of_cluster(
          found, cluster_address(shared_address(&s.groups[group % groups]), group / groups));
      sum = found[0];
      before = __float_as_int(found[1]);
    }
    __syncthreads();  // the candidates are there, and the tile may be overwritten
    report.write<T, kWidth>(
        row, wanted, extent, sum, before, s.gathered, count,
        *reinterpret_cast<RowScratch*>(tile.words));
  }
  meet();
}
