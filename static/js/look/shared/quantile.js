// Quantiles by nearest rank, such as the median and p95 of times.

/**
 * Quantile by nearest rank: the value that a share (0 … 1) does not exceed. NaN if empty.
 *
 * @param {number[]} sorted
 * @param {number} share
 */
export function quantile(sorted, share) {
  if (!sorted.length) return NaN;
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)];
}
