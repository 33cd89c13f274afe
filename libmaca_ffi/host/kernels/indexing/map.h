// Results whose element at (i, j, ...) is the input's at offset tables[0][i] + tables[1][j] + ...: flips, rolls,
// repeats, padding by reflection or replication, nearest upsampling.
#pragma once
#include "index.h"

namespace maca::MACA_ISA {

using MapOffsets = std::vector<Dims>;  // one table a dimension of the result, in elements of the input

MapOffsets identity_offsets(const Operand& in);
inline Dims scaled(Dims coordinates, int64_t stride) {
  for (int64_t& c : coordinates) c *= stride;
  return coordinates;
}
std::unique_ptr<Plan> mapped_copy(const Operand& out, const Operand& in, MapOffsets offsets);

// Coordinates of a padded dimension of n elements: reflection without the edge, or the edge repeated.
Dims padded_coordinates(int64_t n, int64_t before, int64_t after, bool reflect);

}  // namespace maca::MACA_ISA
