// What the stand-ins of the vendors' libraries share: memory of the emulated device, element types, work of a stream.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

extern "C" int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* data);

namespace stand_in {

enum class Type { Float, Double, Half, Bfloat16 };

inline char* plain(const void* address) {  // without the emulator's tag
  return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(address) & ((uintptr_t{1} << 48) - 1));
}
inline bool is_multiple(const void* address, uint64_t of) { return reinterpret_cast<uintptr_t>(address) % of == 0; }

template <class T> T loaded(const void* memory, int64_t i) {
  T value;
  std::memcpy(&value, plain(memory) + i * static_cast<int64_t>(sizeof value), sizeof value);
  return value;
}
template <class T> void stored(void* memory, int64_t i, T value) {
  std::memcpy(plain(memory) + i * static_cast<int64_t>(sizeof value), &value, sizeof value);
}

inline double read(const void* memory, Type type, int64_t i) {
  switch (type) {
    case Type::Float: return static_cast<double>(loaded<float>(memory, i));
    case Type::Double: return loaded<double>(memory, i);
    case Type::Half: return static_cast<double>(loaded<_Float16>(memory, i));
    default: break;
  }
  const uint32_t bits = static_cast<uint32_t>(loaded<uint16_t>(memory, i)) << 16;
  return static_cast<double>(loaded<float>(&bits, 0));
}
inline void write(void* memory, Type type, int64_t i, double value) {
  switch (type) {
    case Type::Float: return stored(memory, i, static_cast<float>(value));
    case Type::Double: return stored(memory, i, value);
    case Type::Half: return stored(memory, i, static_cast<_Float16>(value));
    default: break;
  }
  const auto single = static_cast<float>(value);
  const auto bits = loaded<uint32_t>(&single, 0);
  const bool is_nan = single != single;
  stored(memory, i, static_cast<uint16_t>(is_nan ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16));
}

inline int queue(void* stream, std::function<void()> work) {
  return cudaLaunchHostFunc(
      stream,
      [](void* data) {
        auto* run = static_cast<std::function<void()>*>(data);
        (*run)();
        delete run;
      },
      new std::function<void()>(std::move(work)));
}

// A line of the file STAND_IN_LOG.
template <class... A> void note(const char* format, A... arguments) {
  const char* name = std::getenv("STAND_IN_LOG");
  if (!name) return;
  std::FILE* file = std::fopen(name, "a");
  std::fprintf(file, format, arguments...);
  std::fclose(file);
}

}  // namespace stand_in
