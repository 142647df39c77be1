// Metal's types, address spaces and built-ins, given their meaning in C++ for clang on a CPU.
// Whatever a kernel uses and this file lacks fails to compile: nothing is approximated in silence.
#pragma once
#include <cmath>
#include <limits>
#include <type_traits>

#include "threads.hpp"

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

typedef float float2 __attribute__((ext_vector_type(2)));
typedef float float4 __attribute__((ext_vector_type(4)));
typedef int int2 __attribute__((ext_vector_type(2)));
typedef int int4 __attribute__((ext_vector_type(4)));
typedef uint uint2 __attribute__((ext_vector_type(2)));
typedef uint uint3 __attribute__((ext_vector_type(3)));
typedef uint uint4 __attribute__((ext_vector_type(4)));

namespace emulator {

inline uint bits_of(float value) {
  uint bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

inline float float_of(uint bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint16_t bfloat_bits(float value) {
  uint bits = bits_of(value);
  if (value != value) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((uint64_t(bits) + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float bfloat_value(uint16_t bits) { return float_of(uint(bits) << 16); }

inline uint16_t half_bits(float value) {
  uint bits = bits_of(value), sign = (bits >> 16) & 0x8000, size = bits & 0x7FFFFFFF;
  if (size > 0x7F800000) return uint16_t(sign | 0x7E00);
  if (size >= 0x477FF000) return uint16_t(sign | 0x7C00);
  if (size < 0x38800000) return uint16_t(sign | uint(std::nearbyint(std::ldexp(float_of(size), 24))));
  return uint16_t(sign | ((size - 0x38000000 + 0xFFF + ((size >> 13) & 1)) >> 13));
}

inline float half_value(uint16_t bits) {
  uint sign = uint(bits & 0x8000) << 16, exponent = (bits >> 10) & 31, fraction = bits & 0x3FF;
  if (exponent == 31) return float_of(sign | 0x7F800000 | (fraction << 13));
  if (exponent == 0) return std::copysign(std::ldexp(float(fraction), -24), float_of(sign));
  return float_of(sign | ((exponent + 112) << 23) | (fraction << 13));
}

// A 16-bit float: arithmetic among its own kind rounds after every operation, with a float it is float arithmetic.
template <uint16_t (*Encode)(float), float (*Decode)(uint16_t)>
struct Small {
  uint16_t bits;
  Small() = default;
  template <typename N, typename = std::enable_if_t<std::is_arithmetic_v<N>>>
  explicit Small(N value) : bits(Encode(float(value))) {}
  operator float() const { return Decode(bits); }
  friend Small operator+(Small a, Small b) { return Small(float(a) + float(b)); }
  friend Small operator-(Small a, Small b) { return Small(float(a) - float(b)); }
  friend Small operator*(Small a, Small b) { return Small(float(a) * float(b)); }
  friend Small operator/(Small a, Small b) { return Small(float(a) / float(b)); }
};

}  // namespace emulator

using bfloat = emulator::Small<emulator::bfloat_bits, emulator::bfloat_value>;
using half = emulator::Small<emulator::half_bits, emulator::half_value>;
using bfloat16_t = bfloat;
using float16_t = half;

#define device
#define constant
#define thread
#define kernel
#define threadgroup static __attribute__((section("threadgroup_memory")))
#define MLX_MTL_PRAGMA_UNROLL
#define METAL_FUNC inline __attribute__((always_inline))

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };

inline void threadgroup_barrier(mem_flags flags) { emulator::meet_threadgroup(int(flags)); }
inline void simdgroup_barrier(mem_flags flags) { emulator::meet_simdgroup("simdgroup_barrier", int(flags)); }

template <typename To, typename From>
To as_type(From value) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs two types of one size");
  To result;
  std::memcpy(&result, &value, sizeof(To));
  return result;
}

using std::numeric_limits;

template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
T min(T a, T b) { return b < a ? b : a; }
template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
T max(T a, T b) { return a < b ? b : a; }

inline bool isnan(float value) { return value != value; }
inline float fma(float a, float b, float c) { return std::fma(a, b, c); }

namespace precise {
inline float exp(float value) { return std::exp(value); }
inline float rsqrt(float value) { return 1.0f / std::sqrt(value); }
}  // namespace precise

template <typename T>
T simd_shuffle_xor(T value, ushort mask) {
  emulator::Exchange<T> all("simd_shuffle_xor", value);
  return all.at(emulator::lane() ^ mask);
}

template <typename T>
T simd_shuffle_down(T value, ushort delta) {
  emulator::Exchange<T> all("simd_shuffle_down", value);
  return all.at(emulator::lane() + delta);
}

template <typename T>
T simd_shuffle(T value, ushort from) {
  return emulator::Exchange<T>("simd_shuffle", value).at(from);
}

template <typename T>
T simd_broadcast(T value, ushort from) {
  return emulator::Exchange<T>("simd_broadcast", value).at(from);
}

// Reductions over the lanes that exist, as the butterfly of shuffles would do them.
template <typename T, typename Combine>
T emulated_reduce(const char* operation, T value, Combine combine) {
  emulator::Exchange<T> all(operation, value);
  T terms[emulator::kLanes];
  bool there[emulator::kLanes];
  for (int i = 0; i < emulator::kLanes; ++i) {
    there[i] = all.has(i);
    if (there[i]) terms[i] = all.at(i);
  }
  for (int step = 1; step < emulator::kLanes; step *= 2)
    for (int i = 0; i + step < emulator::kLanes; i += 2 * step)
      if (there[i + step]) terms[i] = combine(terms[i], terms[i + step]);
  return terms[0];
}

template <typename T>
T simd_sum(T value) { return emulated_reduce("simd_sum", value, [](T a, T b) { return T(a + b); }); }
template <typename T>
T simd_max(T value) { return emulated_reduce("simd_max", value, [](T a, T b) { return a < b ? b : a; }); }
template <typename T>
T simd_min(T value) { return emulated_reduce("simd_min", value, [](T a, T b) { return b < a ? b : a; }); }

template <typename T>
T simd_prefix_inclusive_sum(T value) {
  emulator::Exchange<T> all("simd_prefix_inclusive_sum", value);
  T total = all.at(0);
  for (int i = 1; i <= emulator::lane(); ++i) total = T(total + all.at(i));
  return total;
}

template <typename T>
T simd_prefix_exclusive_sum(T value) {
  emulator::Exchange<T> all("simd_prefix_exclusive_sum", value);
  T total = T(0);
  for (int i = 0; i < emulator::lane(); ++i) total = T(total + all.at(i));
  return total;
}

}  // namespace metal

using namespace metal;
