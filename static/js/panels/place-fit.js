// Whether a model fits into what a browser reports of its device, and what would fit instead. No DOM.

/** @typedef {{dtype: string, memory: number}} Sized */

/**
 * Return the offers that fit into `memory` bytes; all if that is not known.
 *
 * @template {Sized} Offer
 * @param {Offer[]} offers
 * @param {number | null} memory
 */
export const fitting = (offers, memory) =>
  offers.filter((offer) => memory === null || offer.memory <= memory);

/**
 * Return why an offer does not fit, with what would, or "". `say(n)` puts bytes into words.
 *
 * @param {Sized} offer
 * @param {Sized[]} offers
 * @param {number | null} memory
 * @param {(n: number) => string} say
 */
export function whyNotFit(offer, offers, memory, say) {
  if (memory === null || offer.memory <= memory) return "";
  const others = fitting(offers, memory).map(({ dtype }) => dtype);
  const instead = others.length
    ? `${others.join(" or ")} would fit`
    : "no storage type of this model fits; run it on the server";
  return `as ${offer.dtype} it needs ${say(offer.memory)}, and this device has ${say(memory)}; ${instead}`;
}

/**
 * Return the sentences that say which adapters a browser gets and which it does not, or "". `carried`:
 * names of those that are in the export.
 *
 * @param {{name: string}[]} loras
 * @param {string[]} carried
 */
export function adaptersSaid(loras, carried) {
  const names = loras.map(({ name }) => name);
  /** @param {string[]} some @param {string} ofOne @param {string} ofMany */
  const said = (some, ofOne, ofMany) => {
    if (!some.length) return "";
    return some.length === 1 ? `The adapter ${some} ${ofOne}.` : `The adapters ${some.join(", ")} ${ofMany}.`;
  };
  const along = said(names.filter((name) => carried.includes(name)), "comes along", "come along");
  const others = names.filter((name) => !carried.includes(name));
  return [along, said(others, "stays on the server", "stay on the server")].filter(Boolean).join(" ");
}

/**
 * Return what to try when the device ran out of memory with an offer: the ones that need less.
 *
 * @param {string} dtype
 * @param {Sized[]} offers
 */
export function smallerThan(dtype, offers) {
  const failed = offers.find((offer) => offer.dtype === dtype);
  return offers.filter(({ memory }) => failed && memory < failed.memory).map((each) => each.dtype);
}
