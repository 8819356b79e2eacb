// What a decode step of one row reads, layer after layer: which rows of which weight a warp multiplies, which
// pieces of K and V it attends to, and the ring in shared memory through which they come to it. For sm_90a.
//
// One warp of a block copies, a lane of it for each of the warps that multiply, by a cursor that never stops
// at the end of a phase or a layer: while a block waits for others, or attends, its rings fill. What a
// multiprocessor asks for comes in the order of asking, though, and behind a full ring of weights a row of
// x would take microseconds. So of a phase that the block has not begun each warp has one piece under way
// at most, and begins the next when it has come.
//
// A piece is what one copy brings: kPiece elements of a row of a weight, or K or V of 16 tokens. Pieces of the
// rows that a warp multiplies at once follow each other, then the next pieces of these rows, then the next
// rows; K of some tokens, then V of these.
#pragma once
#include "common.cuh"
#include "ptx_sm90.cuh"
#include "stack.cuh"

// What one of the layers of a launch has of its own.
template <typename T>
struct DecodeLayer {
  T* k_cache;        // [num_blocks, kv_heads, block_size, head_dim]
  T* v_cache;        // [num_blocks, kv_heads, block_size, head_dim]
  const T* gain;     // [hidden]
  const T* qkv;      // [(heads + 2*kv_heads)*head_dim, hidden]
  const T* o;        // [hidden, heads*head_dim]
  const T* gain2;    // [hidden]
  const T* gate_up;  // [2*inter, hidden]: gates, then what they scale
  const T* down;     // [hidden, inter]
  int* here;         // its place, see layer_place.cuh
  int* next_place;   // that of the layer after it
};

// kBlocks: of the launch; kHeadBlocks: of them, that make q, k and v of a KV head; kPiece: elements of a weight;
// kPieces: that a warp's ring has room for.
template <
    int kHidden_,
    int kInter_,
    int kKvHeads_,
    int kGroup_,
    int kHeadDim_,
    int kBlocks_,
    int kHeadBlocks_,
    int kPiece_,
    int kPieces_>
struct LayerSizes {
  static constexpr int kHidden = kHidden_, kInter = kInter_;
  static constexpr int kKvHeads = kKvHeads_, kGroup = kGroup_, kHeadDim = kHeadDim_;
  static constexpr int kBlocks = kBlocks_, kHeadBlocks = kHeadBlocks_;
  static constexpr int kPiece = kPiece_, kPieces = kPieces_;
  static constexpr int kHeads = kKvHeads * kGroup;
  static constexpr int kQ = kHeads * kHeadDim, kQkv = kQ + 2 * kKvHeads * kHeadDim;
  static constexpr int kWarps = 8;  // that multiply
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kTeams = kBlocks * kWarps;
  static constexpr int kStep = 32 * 8;  // elements that a warp loads at a time
  static constexpr int kTokens = 16;    // of a piece of K or V
  static constexpr int kTokenElements = kTokens * kHeadDim;

  // Rows of qkv's weight that make a KV head's q, k and v, and of these a warp's.
  static constexpr int kHeadRows = (kGroup + 2) * kHeadDim;
  static constexpr int kQkvRows = kHeadRows / (kHeadBlocks * kWarps);
  // Rows that a warp multiplies at once: sums of more ask for more registers than there are.
  static constexpr int kMostAtOnce = 4;
  static constexpr int kQkvAtOnce = kQkvRows % 4 == 0   ? 4
                                    : kQkvRows % 3 == 0 ? 3
                                    : kQkvRows % 2 == 0 ? 2
                                                        : 1;
  static constexpr int kHiddenRows = (kHidden + kTeams - 1) / kTeams;  // at most, of o's and down's
  static constexpr int kHiddenAtOnce = kHiddenRows < kMostAtOnce ? kHiddenRows : kMostAtOnce;
  static constexpr int kGatesAtOnce = 2;  // a gate, and what it scales

  static_assert(kHeadRows % (kHeadBlocks * kWarps) == 0, "warps have equally many rows of qkv");
  static_assert(kKvHeads * kHeadBlocks <= kBlocks, "blocks for all KV heads");
  static_assert(
      kHidden % kPiece == 0 && kQ % kPiece == 0 && kInter % kPiece == 0 && kPiece % kStep == 0,
      "rows are whole pieces, and these whole steps");
};

enum Phase { kQkvPhase, kAttentionPhase, kOPhase, kGatesPhase, kDownPhase, kPhases };

// Adjacent rows, gates or columns.
struct Share {
  int first, count;
};

// What a warp has of so many, where all warps of the launch have about equally many.
template <typename Sizes>
__device__ __forceinline__ Share share_of(int units, int warp) {
  const unsigned all = units, own = blockIdx.x * Sizes::kWarps + warp;
  const int first = all * own / Sizes::kTeams;
  return {first, static_cast<int>(all * (own + 1) / Sizes::kTeams) - first};
}

// The KV head of this block, and which of its head's blocks this one is; it may be none.
template <typename Sizes>
__device__ __forceinline__ int kv_head_of_block() {
  return blockIdx.x % Sizes::kKvHeads;
}
template <typename Sizes>
__device__ __forceinline__ int rank_in_head() {
  return blockIdx.x / Sizes::kKvHeads;
}

// What a warp has of the rows of its KV head: its queries', then the key's, then the value's.
template <typename Sizes>
__device__ __forceinline__ Share qkv_share(int warp) {
  const int rank = rank_in_head<Sizes>();
  return {(rank * Sizes::kWarps + warp) * Sizes::kQkvRows,
          rank < Sizes::kHeadBlocks ? Sizes::kQkvRows : 0};
}
// Where that row is in qkv.
template <typename Sizes>
__device__ __forceinline__ int qkv_row(int own) {
  constexpr int kQueries = Sizes::kGroup * Sizes::kHeadDim, kHeadDim = Sizes::kHeadDim;
  const int head = kv_head_of_block<Sizes>();
  if (own < kQueries) return head * kQueries + own;
  const int in_kv = head * kHeadDim + own - kQueries;  // of all keys, then all values
  return Sizes::kQ + in_kv + (own < kQueries + kHeadDim ? 0 : (Sizes::kKvHeads - 1) * kHeadDim);
}

// What a warp attends to: every so many pieces of 16 tokens of its KV head. Pieces of the row are dealt out to as
// many blocks as leave each of their warps one, or to all blocks of the head; to a block's warps in turn.
template <typename Sizes>
struct TokenPieces {
  const int* block_table;  // of the row's sequence
  int block_shift;         // a block of the cache is 2^block_shift pieces
  int length;              // of the sequence, in tokens
  int all, parts;          // pieces of the row; blocks that attend to it

  __device__ __forceinline__ TokenPieces(
      const int* block_tables,
      const int* row_ids,
      const int* seq_lens,
      int max_blocks,
      int block_shift)
      : block_shift(block_shift), length(load_early(seq_lens)) {
    block_table = block_tables + static_cast<long long>(load_early(row_ids)) * max_blocks;
    all = (length + Sizes::kTokens - 1) / Sizes::kTokens;
    parts = min(Sizes::kHeadBlocks, max(1, (all + Sizes::kWarps - 1) / Sizes::kWarps));
  }
  // Whether this block attends, maybe to nothing.
  __device__ __forceinline__ bool attends() const { return rank_in_head<Sizes>() < parts; }
  __device__ __forceinline__ int first(int warp) const {
    return warp * parts + rank_in_head<Sizes>();
  }
  __device__ __forceinline__ int stride() const { return Sizes::kWarps * parts; }
  __device__ __forceinline__ int count(int warp) const {
    return attends() ? max(0, (all - first(warp) + stride() - 1) / stride()) : 0;
  }
  __device__ __forceinline__ int block_of(int piece) const {
    return piece < all ? load_early(block_table + (piece >> block_shift)) : 0;
  }
  // Where a cache has a piece of this KV head, in elements.
  __device__ __forceinline__ long long in_cache(int block, int piece) const {
    const long long head =
        static_cast<long long>(block) * Sizes::kKvHeads + kv_head_of_block<Sizes>();
    const int place = piece & (1 << block_shift) - 1;
    return ((head << block_shift) + place) * Sizes::kTokenElements;
  }
};

// The pieces of one warp, in order.
template <typename T, typename Sizes>
struct LayerCursor {
  const Stack<DecodeLayer<T>>& layers;
  const int warp;
  int layer = 0, phase = 0;
  const T* weight = nullptr;  // of the phase
  int first = 0, rows = 0, depth = 1, at_once = 1;
  // Rows before those that are multiplied at once now, and how many these are; which of them the cursor is at,
  // and at which piece of it.
  int begun = 0, together = 0;
  int row_of_them = 0, part = 0;
  // Of attention, whose rows are K and V by turns: known only when the launch before has ended.
  int tokens_first = 0, tokens_count = 0;
  int first_block = 0, second_block = 0, block = 0, next_block = 0;  // of the cache

  __device__ __forceinline__ void begin_phase() {
    const DecodeLayer<T>& own = layers.of[layer];
    Share share;
    if (phase == kQkvPhase) {
      weight = own.qkv;
      share = qkv_share<Sizes>(warp);
      depth = Sizes::kHidden / Sizes::kPiece, at_once = Sizes::kQkvAtOnce;
    } else if (phase == kAttentionPhase) {
      share = {0, 2 * tokens_count};
      depth = at_once = 1;
      block = first_block, next_block = second_block;
    } else if (phase == kGatesPhase) {
      weight = own.gate_up;
      share = share_of<Sizes>(Sizes::kInter, warp);
      share.count *= 2;
      depth = Sizes::kHidden / Sizes::kPiece, at_once = Sizes::kGatesAtOnce;
    } else {
      weight = phase == kOPhase ? own.o : own.down;
      share = share_of<Sizes>(Sizes::kHidden, warp);
      depth = (phase == kOPhase ? Sizes::kQ : Sizes::kInter) / Sizes::kPiece;
      at_once = Sizes::kHiddenAtOnce;
    }
    first = share.first, rows = share.count;
    begun = row_of_them = part = 0;
    together = min(at_once, rows);
  }
  // To the begin of what this warp has after a phase; false where there is nothing.
  __device__ __forceinline__ bool begin_next_phase() {
    do {
      if (++phase == kPhases) {
        phase = 0;
        if (++layer >= layers.count) return false;
      }
      begin_phase();
    } while (rows == 0);
    return true;
  }
  // To the next piece of a product; false after its last.
  __device__ __forceinline__ bool advance_in_product() {
    if (++row_of_them < together) return true;
    row_of_them = 0;
    if (++part < depth) return true;
    part = 0;
    begun += together;
    together = min(at_once, rows - begun);
    return together > 0;
  }
  // To the next piece of attention. The block after next is on its way while this one is copied.
  __device__ __forceinline__ bool advance_in_attention(const TokenPieces<Sizes>& tokens) {
    if (++begun >= rows) return false;
    if (begun % 2 == 0) {
      block = next_block;
      next_block = tokens.block_of(token_piece(tokens) + tokens.stride());
    }
    return true;
  }
  // To the next piece; false after the last.
  __device__ __forceinline__ bool advance(const TokenPieces<Sizes>& tokens) {
    const bool in_phase =
        phase == kAttentionPhase ? advance_in_attention(tokens) : advance_in_product();
    return in_phase || begin_next_phase();
  }
  // From now on attention's pieces are known.
  __device__ __forceinline__ void know(const TokenPieces<Sizes>& tokens) {
    tokens_first = tokens.first(warp), tokens_count = tokens.count(warp);
    if (tokens_count == 0) return;
    first_block = tokens.block_of(tokens_first);
    second_block = tokens.block_of(tokens_first + tokens.stride());
  }
  __device__ __forceinline__ int token_piece(const TokenPieces<Sizes>& tokens) const {
    return tokens_first + begun / 2 * tokens.stride();
  }

  __device__ __forceinline__ const T* weight_piece() const {
    const int own = begun + row_of_them;
    int row = first + own;
    if (phase == kQkvPhase) row = qkv_row<Sizes>(row);
    if (phase == kGatesPhase) row = first + own / 2 + own % 2 * Sizes::kInter;
    return weight + (static_cast<long long>(row) * depth + part) * Sizes::kPiece;
  }
  __device__ __forceinline__ const T* piece(const TokenPieces<Sizes>& tokens) const {
    if (phase != kAttentionPhase) return weight_piece();
    const DecodeLayer<T>& own = layers.of[layer];
    return (begun % 2 ? own.v_cache : own.k_cache) + tokens.in_cache(block, token_piece(tokens));
  }
  __device__ __forceinline__ int piece_bytes() const {
    return sizeof(T) * (phase == kAttentionPhase ? Sizes::kTokenElements : Sizes::kPiece);
  }
  // Numbers phases of all layers in order.
  __device__ __forceinline__ int number() const { return layer * kPhases + phase; }
};

// Where the rings of a block are in shared memory, and barriers for each place: when the piece is there, and
// when the place is free again.
template <typename T, typename Sizes>
struct LayerRings {
  static constexpr int kLargest =
      Sizes::kPiece > Sizes::kTokenElements ? Sizes::kPiece : Sizes::kTokenElements;
  static constexpr int kPlaceBytes = kLargest * sizeof(T);
  static constexpr int kPlaces = Sizes::kWarps * Sizes::kPieces;
  static constexpr int kEmptyAfterFull = kPlaces * 8;  // bytes
  unsigned char* begin;                                // 128-byte aligned

  __device__ __forceinline__ unsigned char* pieces(int warp) const {
    return begin + warp * Sizes::kPieces * kPlaceBytes;
  }
  __device__ __forceinline__ unsigned full(int warp) const {
    return shared_address(begin) + kPlaces * kPlaceBytes + warp * Sizes::kPieces * 8;
  }
  // By one thread; a __syncthreads() follows.
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < 2 * kPlaces; ++i) mbarrier_init(full(0) + 8 * i, 1);
    mbarrier_init_done();
  }
};

// A place in a ring, and in which of its turns.
template <typename Sizes>
struct RingPlace {
  int slot = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++slot == Sizes::kPieces) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// Copies all pieces of a block, by one warp. `current` is the number of the phase that the block is in;
// tokens_of_row() is called when the launch before has ended.
template <typename T, typename Sizes, typename TokensOfRow>
__device__ __forceinline__ void copy_layers(
    const Stack<DecodeLayer<T>>& layers,
    const LayerRings<T, Sizes>& rings,
    const int* current,
    const TokensOfRow& tokens_of_row) {
  using Rings = LayerRings<T, Sizes>;
  const int lane = threadIdx.x % 32, warp = lane % Sizes::kWarps;
  const unsigned full = rings.full(warp), pieces = shared_address(rings.pieces(warp));
  RingPlace<Sizes> next, oldest;  // to be copied; of those under way
  int under_way = 0;
  const auto copy = [&](const T* from, int bytes) {
    mbarrier_arrive_expecting(full + 8 * next.slot, bytes);
    copy_bytes(pieces + Rings::kPlaceBytes * next.slot, from, bytes, full + 8 * next.slot);
    ++under_way;
    next.advance();
  };
  LayerCursor<T, Sizes> cursor{layers, warp};
  cursor.begin_phase();
  const bool copies = lane < Sizes::kWarps, has_qkv = cursor.rows > 0;
  constexpr int kQkvPieces = Sizes::kQkvRows * (Sizes::kHidden / Sizes::kPiece);
  constexpr int kFirst = kQkvPieces < Sizes::kPieces ? kQkvPieces : Sizes::kPieces;
  if (copies && has_qkv) {  // weights do not depend on what the launch before does
    for (int i = 0; i < kFirst; ++i) {
      if (i > 0) cursor.advance_in_product();
      copy(cursor.weight_piece(), cursor.piece_bytes());
    }
  }
  wait_for_previous_kernel();
  const TokenPieces<Sizes> tokens = tokens_of_row();
  cursor.know(tokens);

  bool more = copies && (has_qkv ? cursor.advance(tokens) : cursor.begin_next_phase());
  int number = cursor.number(), bytes = cursor.piece_bytes();
  const T* from = cursor.piece(tokens);
  // Short, since how soon a copy follows the one before it says how fast a multiprocessor reads; so a lane asks only
  // barriers whose answer it needs, and none for the others.
  while (more) {
    const int now = load_hint(current);
    if (under_way > 0 && mbarrier_has_ended(full + 8 * oldest.slot, oldest.parity)) {
      --under_way;
      oldest.advance();
    }
    const unsigned empty = full + Rings::kEmptyAfterFull + 8 * next.slot;
    const bool may = under_way < (number > now ? 1 : Sizes::kPieces);
    if (may && mbarrier_has_ended(empty, next.parity ^ 1)) {
      copy(from, bytes);
      more = cursor.advance(tokens);
      number = cursor.number(), bytes = cursor.piece_bytes();
      from = cursor.piece(tokens);
    }
  }
  __syncwarp();  // who has nothing to copy does not go on alone
}

// A warp's end of its ring. Weights are the rows of a tensor core's fragment, 16 bytes of each lane: 8 adjacent
// elements of one row. Their products with 8 elements of x count where row and column are the same lanes';
// so a fragment is half of that, two steps are a load, and there are tensor cores to spare.
template <typename T, typename Sizes>
struct WarpRing {
  using Rings = LayerRings<T, Sizes>;
  using Words = Pack<unsigned, 4>;
  static constexpr int kSteps = Sizes::kPiece / Sizes::kStep;  // of a piece
  // x of this lane, of a piece's columns. In shared memory words of 16 bytes lie in the order 0, 2, 1, 3, so
  // that two of them are the columns of a fragment.
  using Values = Words[kSteps];

  unsigned char* pieces;
  unsigned full;
  RingPlace<Sizes> place;

  __device__ __forceinline__ WarpRing(const Rings& rings, int warp)
      : pieces(rings.pieces(warp)), full(rings.full(warp)) {}

  // Stores the vector `at` of x, 4 elements.
  static __device__ __forceinline__ void store_x(T* x, int at, const unsigned (&words)[2]) {
    unsigned* const to = reinterpret_cast<unsigned*>(x) + 2 * at - (at & 1);
    to[0] = words[0];
    to[2] = words[1];
  }
  static __device__ __forceinline__ void take(Values& values, const Words* x) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) values[step] = x[step * 32 + threadIdx.x % 32];
  }

  // The next piece, when it is there.
  __device__ __forceinline__ unsigned char* await_piece() const {
    mbarrier_wait(full + 8 * place.slot, place.parity);
    return pieces + Rings::kPlaceBytes * place.slot;
  }
  // The warp does not need it any more: the copy that takes its place comes after all that it has read of it, and
  // written to it.
  __device__ __forceinline__ void give_back() {
    fence_shared_memory();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      mbarrier_arrive(full + Rings::kEmptyAfterFull + 8 * place.slot);
    }
    place.advance();
  }

  // Adds the products with the next piece, to so many sums in turn.
  template <int kSums>
  __device__ __forceinline__ void multiply(float (&sums)[kSums][4], const Values& x) {
    const unsigned char* from = await_piece() + threadIdx.x % 32 * 16;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      unsigned a[4];
      load_shared(a, from + 512 * step);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const unsigned b[2] = {x[step].v[2 * i], x[step].v[2 * i + 1]};
        mma_m16n8k16<T>(sums[(step * 2 + i) % kSums], a, b);
      }
    }
    give_back();
  }

  // Of the products those that count.
  template <int kSums>
  static __device__ __forceinline__ float own_sum(const float (&sums)[kSums][4]) {
    const int lane = threadIdx.x % 32, left = lane % 4 * 2, own = lane / 4;
    float of_left = sums[0][0] + sums[1][2], of_right = sums[0][1] + sums[1][3];
    if constexpr (kSums == 4) {
      of_left += sums[2][0] + sums[3][2];
      of_right += sums[2][1] + sums[3][3];
    }
    return own == left ? of_left : own == left + 1 ? of_right : 0.0f;
  }

  // Calls finish(begun, together, sums) for the rows of a phase, kAtOnce of them at a time, with their sums in
  // every lane. x lies in shared memory, kDepth pieces.
  template <int kAtOnce, int kDepth, typename Finish>
  __device__ __forceinline__ void multiply_rows(int rows, const T* x, const Finish& finish) {
    const Words* const in_shared = reinterpret_cast<const Words*>(x);
    constexpr int kSums = kAtOnce > 3 ? 2 : 4;  // of a row: registers are few
    Values values;
    if constexpr (kDepth == 1) take(values, in_shared);
#pragma unroll 1
    for (int begun = 0; begun < rows; begun += kAtOnce) {
      const int together = min(kAtOnce, rows - begun);
      float all[kAtOnce][kSums][4] = {}, sums[kAtOnce];
#pragma unroll 1
      for (int part = 0; part < kDepth; ++part) {
        if constexpr (kDepth > 1) take(values, in_shared + part * kSteps * 32);
#pragma unroll
        for (int r = 0; r < kAtOnce; ++r) {
          if (r < together) multiply(all[r], values);
        }
      }
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) sums[r] = own_sum(all[r]);
#pragma unroll
      for (int offset = 16; offset > 0; offset >>= 1) {
#pragma unroll
        for (int r = 0; r < kAtOnce; ++r) sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], offset);
      }
      finish(begun, together, sums);
    }
  }
  // The sum of row `lane` of those that were multiplied at once.
  template <int kAtOnce>
  static __device__ __forceinline__ float sum_of_lane(const float (&sums)[kAtOnce]) {
    float own = sums[0];
#pragma unroll
    for (int r = 1; r < kAtOnce; ++r) {
      if (threadIdx.x % 32 == r) own = sums[r];
    }
    return own;
  }
};
