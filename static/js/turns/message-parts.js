// The parts of a message of the person: attached files, and what was typed.

/**
 * Return what a person sent in a turn: {text, files: [{name, block}]}.
 *
 * @param {{text: string, files?: ReplayFile.AttachedFile[]}} turn
 */
export function partsOf({ text, files = [] }) {
  const parts = [];
  let at = 0;
  for (const { name, chars } of files) {
    parts.push({ name, block: text.slice(at, at + chars) });
    at += chars;
  }
  return { text: text.slice(at), files: parts };
}
