// Saving bytes as a file by the browser's download.

import { el } from "./dom.js";

/**
 * @param {Blob} blob
 * @param {string} name
 */
export function download(blob, name) {
  const link = el("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
