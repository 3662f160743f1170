// Shapes of the KV cache instrument.

/** A view of the instrument, which has the parts of one (cache.js). */
type CacheView = Instrument & { hide?(): void };

/** State of all blocks (blocks.js). */
type Pool = ReturnType<typeof import("./blocks.js").readPool>;

/** The cache under another layout: its name, what it changes, and bytes of a text (kv-size.js). */
interface KvLayout {
  name: string;
  word?: string;
  what: string;
  bytes(tokens: number): number;
}
