// Stored rows to atoms when weights come, and rows of atoms looked up.
#include "atoms.cuh"

// Eight codes of a stored row in bytes, 0 where there is no row or column.
template <int F> DEV uint64_t eight_codes(const uint8_t* row, unsigned col, unsigned cols) {
  constexpr unsigned weights = Stored<F>::weights, bytes = Stored<F>::bytes;
  if (!row || col >= cols) return 0;
  if constexpr (weights > 1) return Atoms<F>::codes(row + (size_t)(col / weights) * bytes, col % weights);
  uint64_t codes = 0;
  for (unsigned i = 0; i < 8 && col + i < cols; i++) codes |= (uint64_t)row[col + i] << (8 * i);
  return codes;
}

// What lane 4g + t of an atom has: of rows g and g + 8, from column `first` of the atom on.
template <int F> DEV Quad quad_of(const uint8_t* const (&rows)[2], unsigned first, unsigned t, unsigned j, unsigned cols) {
  Quad q;
  if constexpr (Atoms<F>::KIND == BF16_ATOM) {
    // [h][r][e]; the atom is step j of its block.
    for (unsigned w = 0; w < 4; w++) {
      q.w[w] = 0;
      for (unsigned e = 0; e < 2; e++) {
        unsigned col = first + 8 * t + 4 * j + w / 2 * 2 + e;
        if (rows[w % 2] && col < cols) q.w[w] |= (uint32_t)load16(rows[w % 2] + 2 * col) << (16 * e);
      }
    }
  } else if constexpr (Atoms<F>::KIND == BYTE_ATOM) {
    // [j][r], bytes of h and e: (0, 0), (1, 0), (0, 1), (1, 1).
    for (unsigned r = 0; r < 2; r++) {
      uint64_t codes = eight_codes<F>(rows[r], first + 8 * t, cols);
      for (unsigned step = 0; step < 2; step++) {
        uint32_t word = 0;
        for (unsigned i = 0; i < 4; i++) word |= byte_of(codes, 4 * step + i % 2 * 2 + i / 2) << (8 * i);
        q.w[2 * step + r] = word;
      }
    }
  } else {
    // [block][r], nibble 2j + h of e = 0, 4 + 2j + h of e = 1.
    for (unsigned w = 0; w < 4; w++) {
      uint64_t codes = eight_codes<F>(rows[w % 2], first + 32 * (w / 2) + 8 * t, cols);
      q.w[w] = 0;
      for (unsigned i = 0; i < 8; i++) q.w[w] |= byte_of(codes, i) << (4 * (i / 2 + i % 2 * 4));
    }
  }
  return q;
}

// p: stored rows, atoms of the part, their scales
// n: columns, bytes from row to row, the first of these rows in the part (of a strip), how many there are
// A block a strip of these rows, and every so many units.
template <int F> DEV void pack(const Args& a) {
  unsigned cols = a.n[0], units = units_of<F>(cols), strip = a.n[2] / 16 + block_x();
  constexpr unsigned COLUMNS = Atoms<F>::KIND == BF16_ATOM ? 16 : Atoms<F>::KIND == BYTE_ATOM ? 32 : 64;
  auto row_at = [&](unsigned r) {
    unsigned row = block_x() * 16 + r;
    return row < a.n[3] ? at<const uint8_t>(a.p[0]) + (size_t)row * a.n[1] : nullptr;
  };
  for (unsigned unit = block_y(); unit < units; unit += blocks_y()) {
    size_t place = (size_t)strip * units + unit;
    Quad* to = at<Quad>(a.p[1]) + place * Atoms<F>::QUADS * 32;
    for (unsigned i = thread(); i < Atoms<F>::QUADS * 32; i += threads()) {
      unsigned atom = i / 32, g = i % 32 / 4, t = i % 4;
      const uint8_t* const rows[2] = {row_at(g), row_at(g + 8)};
      unsigned first = unit * Atoms<F>::UNIT + (COLUMNS == 16 ? atom / 2 * 32 : atom * COLUMNS);
      to[i] = quad_of<F>(rows, first, t, atom % 2, cols);
    }
    if constexpr (Atoms<F>::SCALES > 0) {
      uint8_t* scales = at<uint8_t>(a.p[2]) + place * Atoms<F>::SCALES;
      for (unsigned i = thread(); i < Atoms<F>::SCALES / 4; i += threads()) reinterpret_cast<uint32_t*>(scales)[i] = 0;
      sync_block();
      if (thread() < 16 && row_at(thread())) Atoms<F>::put_scales(row_at(thread()), scales, thread(), unit * Atoms<F>::UNIT, cols);
      sync_block();
    }
  }
}

// The code of a weight.
template <int F> DEV uint32_t code_at(const uint8_t* atoms, unsigned units, unsigned row, unsigned col) {
  constexpr unsigned UNIT = Atoms<F>::UNIT;
  const uint8_t* unit = atoms + ((size_t)(row / 16) * units + col / UNIT) * unit_bytes<F>();
  unsigned in = col % UNIT, block = in / 32, i = in % 8, lane = row % 8 * 4 + in % 32 / 8, r = row % 16 / 8;
  if (Atoms<F>::KIND == BF16_ATOM)
    return load16(unit + (block * 2 + i / 4) * 512 + lane * 16 + (i % 4 / 2 * 4 + r * 2 + i % 2) * 2);
  if (Atoms<F>::KIND == BYTE_ATOM) return unit[block * 512 + lane * 16 + (i / 4 * 2 + r) * 4 + i % 4 / 2 + i % 2 * 2];
  uint32_t word = load32(unit + block / 2 * 512 + lane * 16 + (block % 2 * 2 + r) * 4);
  return nibble_of(word, i / 2 + i % 2 * 4);
}

// p, n, f: as of embed (product.cu), of a part that lies in atoms
template <int F> DEV void embed_atoms(const Args& a) {
  const Step* step = at<const Step>(a.p[0]);
  const Part& part = *at<const Part>(a.p[1]);
  unsigned t = block_x();
  if (t >= step->tokens) return;
  unsigned id = array(step, step->ids)[t];
  if (id < part.first || id - part.first >= part.count) return;
  unsigned row = id - part.first, cols = a.n[0], units = units_of<F>(cols), type = array(step, step->types)[t];
  const uint8_t *atoms = at<const uint8_t>(part.rows), *scales = atoms + atoms_bytes<F>(part.count, cols);
  if (a.n[2] && type >= a.n[2]) type = a.n[2] - 1;
  const float* position = a.p[2] ? row_of(a.p[2], array(step, step->positions)[t], cols) : nullptr;
  const float* of_type = a.p[3] ? row_of(a.p[3], type, cols) : nullptr;
  float* out = row_to(a.p[4], t, a.n[1]);
  for (unsigned c = thread(); c < cols; c += threads()) {
    const uint8_t* own = scales + ((size_t)(row / 16) * units + c / Atoms<F>::UNIT) * Atoms<F>::SCALES;
    float y = mul_rn(Atoms<F>::number(own, row % 16, c % Atoms<F>::UNIT, code_at<F>(atoms, units, row, c)), a.f[0]);
    if (position) y = add_rn(y, position[c]);
    if (of_type) y = add_rn(y, of_type[c]);
    out[c] = y;
  }
}

#define KERNELS(name)                            \
  KERNEL(pack_##name) { pack<F_##name>(a); }     \
  KERNEL(look_up_##name) { embed_atoms<F_##name>(a); }
FOR_EACH_ATOM(KERNELS)
