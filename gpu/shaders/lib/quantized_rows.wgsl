// How rows of bytes lie in memory: each of BLOCKS blocks of 32 numbers is two loads of 16 signed
// bytes, then one of float32: the scale of the first 16, that of the others, and the sum of all 32
// numbers, number = byte · scale. The first 16 are those of lower index or, EVEN_ODD in
// to_bytes.wgsl, of even index in the block.
const BYTE_LOADS = 3u; // of a block
