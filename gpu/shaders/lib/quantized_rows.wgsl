// Layout of quantised activations: each of BLOCKS blocks of 32 numbers is two loads of 16 signed
// bytes, then one of float32: the scale of the first 16, the scale of the others, the sum of all 32
// numbers, 0; number = byte · scale. The first 16 are those of lower index or, with EVEN_ODD in
// quantize_activations.wgsl, of even index in the block.
const Q8_BLOCK_LOADS = 3u; // loads of a block
