// Memory of the device, as far as a browser reports it.

const GIB = 2 ** 30;
/** Browsers never report more memory than this. */
const MOST_TOLD = 8 * GIB;

/**
 * Return the bytes of memory that a device has at most, or null if the browser does not report it.
 * `deviceMemory` is `navigator.deviceMemory`, in GiB.
 *
 * @param {number | undefined} deviceMemory
 */
export function memoryOf(deviceMemory) {
  const told = (deviceMemory ?? 0) * GIB;
  return told && told < MOST_TOLD ? told : null;
}
