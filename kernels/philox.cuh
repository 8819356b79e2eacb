// Philox4x32-10 (Salmon et al., 2011), as philox.py writes it out. No kernel lives here.
#pragma once

constexpr unsigned kUseSample = 0;  // third counter word of the draw that chooses a token

struct PhiloxWords {
  unsigned w[4];
};

__device__ __forceinline__ PhiloxWords
philox4x32_10(PhiloxWords counter, unsigned key0, unsigned key1) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned high0 = __umulhi(0xD2511F53u, counter.w[0]), low0 = 0xD2511F53u * counter.w[0];
    const unsigned high1 = __umulhi(0xCD9E8D57u, counter.w[2]), low1 = 0xCD9E8D57u * counter.w[2];
    counter = {{high1 ^ counter.w[1] ^ key0, low1, high0 ^ counter.w[3] ^ key1, low0}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}
