#include <string.h>

#include "shared_memory.h"

SharedPlace shared_place;

namespace {

constexpr unsigned char kPoison = 0xff;  // a NaN in fp32, fp16 and bf16; -1 as an integer

struct Piece {
  unsigned char* begin;
  size_t bytes;
};

Piece piece(uintptr_t begin, uintptr_t end) {
  return {reinterpret_cast<unsigned char*>(begin), end > begin ? end - begin : 0};
}
Piece before() { return piece(shared_place.begin, shared_place.dynamic); }
Piece dynamic() {
  return piece(shared_place.dynamic, shared_place.dynamic + shared_place.dynamic_bytes);
}
Piece after() {
  return piece(shared_place.dynamic + shared_place.dynamic_capacity, shared_place.end);
}

}  // namespace

void poison_shared() {
  for (const Piece& part : {before(), dynamic(), after()}) memset(part.begin, kPoison, part.bytes);
}

void SharedImage::store() {
  const auto copy = [](const Piece& part, std::vector<unsigned char>& to) {
    to.assign(part.begin, part.begin + part.bytes);
  };
  copy(::before(), before);
  copy(::dynamic(), dynamic);
  copy(::after(), after);
}

void SharedImage::load() const {
  memcpy(::before().begin, before.data(), before.size());
  memcpy(::dynamic().begin, dynamic.data(), dynamic.size());
  memcpy(::after().begin, after.data(), after.size());
}
