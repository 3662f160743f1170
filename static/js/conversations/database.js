// Conversations in this browser's IndexedDB: an entry of each for the list, and its file.
//
// Every write names the revision that the page last saw. A page therefore never overwrites what
// another tab wrote meanwhile; it gets an error instead.

const NAME = "tokenglass";
const VERSION = 1;
const ENTRIES = "conversations";
const FILES = "files";

/**
 * Entry of a conversation, all of it but its file.
 *
 *   id, rev    name and revision: 1 when first written, one more with every write
 *   writer     page that wrote this revision
 *   title      name that a person gave it, or ""
 *   heading    beginning of the first prompt
 *   system     system prompt
 *   created, updated   ms since 1970
 *   model      name of the model that wrote last
 *   text       prompts and answers, for the search
 *   branchedFrom       as in state.js; absent from entries of older pages
 *   runs       ids of the runs, in the order of the segments in the file
 *   nTokens, nBytes    number of generated tokens; size of the file
 */

/** Why the browser did not store something. `code`: "storage_off" or "storage_full". */
export class StorageError extends Error {
  /**
   * @param {string} code
   * @param {string} message
   */
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

/** @param {unknown} error */
function storageError(error) {
  if (error instanceof StorageError) return error;
  const { name = "", message = "" } = error instanceof Error ? error : {};
  if (name === "QuotaExceededError")
    return new StorageError(
      "storage_full",
      "What is written from now on is only in this tab. Delete conversations that you do not " +
        "need, or save this one as a file.",
    );
  return new StorageError(
    "storage_off",
    "This browser does not let the page store conversations here, as in some private windows " +
      `(${message || name || "no reason given"}). They last until this tab is ` +
      "closed; save those that you need as files.",
  );
}

/** @type {Promise<IDBDatabase> | null} */
let opening = null;

function openDatabase() {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => {
      request.result.createObjectStore(ENTRIES, { keyPath: "id" });
      request.result.createObjectStore(FILES, { keyPath: "id" });
    };
    request.onsuccess = () => {
      const database = request.result;
      database.onversionchange = () => database.close(); // a newer page wants to change the stores
      database.onclose = forget;
      resolve(database);
    };
    request.onerror = () => reject(request.error);
  });
  opening.catch(forget);
  return opening;
}

function forget() {
  opening = null;
}

/**
 * @template T
 * @typedef {(entries: IDBObjectStore, files: IDBObjectStore, finish: (result: T) => void,
 *   abort: (error: unknown) => void) => void} Work
 */

/**
 * Run `work(entries, files, finish)` in one transaction; resolves to what `finish` was given once
 * it is complete. Rejects with StorageError.
 *
 * @template T
 * @param {IDBTransactionMode} mode
 * @param {Work<T>} work
 * @returns {Promise<T>}
 */
async function transact(mode, work) {
  try {
    const database = await openDatabase();
    return await new Promise((resolve, reject) => {
      /** @type {T} */
      let result;
      const transaction = database.transaction([ENTRIES, FILES], mode);
      transaction.oncomplete = () => resolve(result);
      transaction.onabort = () => reject(transaction.error);
      /** @param {T} value */
      const finish = (value) => {
        result = value;
      };
      /** @param {unknown} error */
      const abort = (error) => {
        transaction.abort();
        reject(error);
      };
      work(transaction.objectStore(ENTRIES), transaction.objectStore(FILES), finish, abort);
    });
  } catch (error) {
    throw storageError(error);
  }
}

/**
 * Call `use` with the result of a request; what it throws aborts the transaction.
 *
 * @param {IDBRequest} request
 * @param {(result: any) => void} use
 * @param {(error: unknown) => void} abort
 */
function then(request, use, abort) {
  request.onsuccess = () => {
    try {
      use(request.result);
    } catch (error) {
      abort(error);
    }
  };
}

/** @returns {Promise<Entry[]>} all entries, the last changed one first */
export async function readEntries() {
  /** @type {Entry[]} */
  const entries = await transact("readonly", (store, _files, finish, abort) =>
    then(store.getAll(), finish, abort),
  );
  return entries.sort((a, b) => b.updated - a.updated);
}

/**
 * @returns {Promise<Entry | undefined>}
 *
 * @param {string} id
 */
export const readEntry = (id) =>
  transact("readonly", (store, _files, finish, abort) => then(store.get(id), finish, abort));

/**
 * Return the file of a conversation (gzip, see replay/file.js), or undefined.
 *
 * @param {string} id
 */
export const readFile = (id) =>
  transact("readonly", (_entries, store, finish, abort) =>
    then(store.get(id), (found) => finish(found?.bytes), abort),
  );

/**
 * Write a conversation whose last known revision is `rev`, 0 for a new one. Resolves to its entry,
 * or to null where another page has written or deleted it since: nothing is written then. With
 * `mayMerge` it is written over a revision all of whose runs it has, too, with that one's name and
 * system prompt; and where that one has all of its runs, that entry is the result. Neither is so if
 * the texts differ by more than their ends, as when a summary was edited.
 *
 * @param {Omit<Entry, "rev">} entry
 * @param {ArrayBuffer} bytes
 * @param {number} rev
 * @param {boolean} [mayMerge]
 */
export const writeConversation = (entry, bytes, rev, mayMerge = false) =>
  transact("readwrite", (entries, files, finish, abort) =>
    then(
      entries.get(entry.id),
      (present) => {
        const isNewer = (present?.rev ?? 0) !== rev;
        if (isNewer && !(mayMerge && present && hasSameText(entry, present))) return finish(null);
        if (isNewer && hasMore(present, entry)) return finish(present);
        if (isNewer && !hasRunsOf(entry, present)) return finish(null);
        const written = { ...present, ...entry, rev: (present?.rev ?? 0) + 1 };
        if (isNewer) Object.assign(written, { title: present.title, system: present.system });
        entries.put(written);
        files.put({ id: entry.id, bytes });
        return finish(written);
      },
      abort,
    ),
  );

/**
 * @param {Omit<Entry, "rev">} entry
 * @param {Omit<Entry, "rev">} other
 */
const hasRunsOf = (entry, other) => other.runs.every((run) => entry.runs.includes(run));

/**
 * @param {Omit<Entry, "rev">} entry
 * @param {Omit<Entry, "rev">} other
 */
const hasMore = (entry, other) =>
  hasRunsOf(entry, other) && entry.runs.length > other.runs.length && entry.nTokens >= other.nTokens;

/**
 * Does one text go on where the other ends?
 *
 * @param {Omit<Entry, "rev">} entry
 * @param {Omit<Entry, "rev">} other
 */
const hasSameText = ({ text }, other) => text.startsWith(other.text) || other.text.startsWith(text);

/**
 * Change fields of an entry; resolves to it, or to null if it was deleted.
 *
 * @param {string} id
 * @param {Partial<Entry>} fields
 */
export const changeEntry = (id, fields) =>
  transact("readwrite", (entries, _files, finish, abort) =>
    then(
      entries.get(id),
      (present) => {
        if (!present) return finish(null);
        const written = { ...present, ...fields, rev: present.rev + 1 };
        entries.put(written);
        return finish(written);
      },
      abort,
    ),
  );

/**
 * Delete a conversation; resolves to {entry, bytes}, which `putBack` takes, or to null.
 *
 * @param {string} id
 */
export const deleteConversation = (id) =>
  transact("readwrite", (entries, files, finish, abort) => {
    then(
      entries.get(id),
      (entry) => {
        if (!entry) return finish(null);
        then(
          files.get(id),
          (file) => {
            entries.delete(id);
            files.delete(id);
            finish({ entry, bytes: file?.bytes });
          },
          abort,
        );
        return undefined;
      },
      abort,
    );
  });

/**
 * Put a deleted conversation back, unless one of its id is there again.
 *
 * @param {{entry: Entry, bytes: ArrayBuffer}} options
 */
export const putBack = ({ entry, bytes }) =>
  transact("readwrite", (entries, files, finish, abort) =>
    then(
      entries.get(entry.id),
      (present) => {
        if (present) return;
        entries.put(entry);
        files.put({ id: entry.id, bytes });
        finish(entry);
      },
      abort,
    ),
  );
