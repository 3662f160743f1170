// What a comparison says in words: what is different in a column, and why two answers part.

import { describeInterventionChange } from "../../interventions/interventions.js";
import { toWire } from "../../interventions/intervention-wire.js";
import { SETTING_BY_NAME, differences, isGreedy, presetOf } from "../../settings/sampling-settings.js";
import { tokenLabel } from "../../ui/format.js";
import { heading } from "../filters/figures.js";

/** @param {string} name @param {number} value */

const valueOf = (name, value) =>
  SETTING_BY_NAME[name].off ? heading(name, value) : String(value);
/** @param {string} name */
const labelOf = (name) => SETTING_BY_NAME[name].label;

/**
 * Say what differs in a column from another, "temperature 0.20, seed 7, head 2.3 off". Each has its
 * settings and a `Setting` of interventions; the first may have its own `prompt`.
 *
 * @param {[Settings, Setting]} column
 * @param {[Settings, Setting]} other
 * @param {string} [prompt]
 */
export function describeColumn([of, setting], [other, otherSetting], prompt = "") {
  const words = isGreedy(of) && !isGreedy(other) ? ["greedy"] : changesOf(of, other);
  if (prompt) words.unshift("another prompt");
  if (of.seed !== other.seed) words.push(of.seed ? `seed ${of.seed}` : "random seed");
  if (String(of.stop) !== String(other.stop)) words.push("other stop strings");
  const inside = describeInterventionChange(toWire(otherSetting), toWire(setting));
  if (inside) words.push(inside === "reset" ? "no interventions" : inside);
  return words.join(", ") || "the same settings";
}

/** @param {Settings} of @param {Settings} other */
const changesOf = (of, other) =>
  differences(other, of).map(({ name, to }) => `${labelOf(name)} ${valueOf(name, to)}`);

/** What the page's own settings are called. @param {Settings} settings */
export const describeOwn = (settings) => presetOf(settings) || "the page’s settings";

/** @param {Token | null} token */
export const quoted = (token) =>
  token ? `“${tokenLabel(token.text, token.eos ? "end of text" : "·")}”` : "its end";

/**
 * Explain why two answers part, from what the engine says of both sides (explain.js).
 *
 *   names     of the columns, "A" and "B"
 *   settings  `settingsAt` of both tokens, with `seed`
 *   sides     {logits, after, draw, greedy} of both; the first two by id
 *   tokens    the two tokens
 *   moved     whether any of the logits differ
 *   prompts   whether the prompts differ
 *
 * @param {{names: string[], settings: NamedSettings[], sides: ComparedSide[], tokens: Token[], moved: boolean, prompts: boolean}} difference
 */
export function explain({ names, settings, sides, tokens, moved, prompts }) {
  const [a, b] = settings;
  const inside = describeInterventionChange(a.reach ?? {}, b.reach ?? {});
  const causes = [prompts && "another prompt", inside].filter(Boolean).join(" and ");
  if (moved) return `The logits differ. ${movedText(causes, sides, tokens)}`;
  const changes = differences(a, b).filter(({ name }) => name !== "max_tokens");
  const words = changes.map(
    ({ name, from, to }) => `${labelOf(name)} ${valueOf(name, from)} against ${valueOf(name, to)}`,
  );
  const draws = sides.map(({ draw }) => draw.toFixed(3));
  const marks = markText(names, settings);
  const greedy = sides.findIndex((side) => side.greedy);
  if (sides.every((side) => side.greedy))
    return `Same logits, both greedy, other settings: ${words.join(", ")}.${marks}`;
  if (greedy >= 0) {
    const others = words.filter((_, i) => changes[i].name !== "temperature").join(", ");
    const drew = `drew with ${draws[1 - greedy]} at ${heading("temperature", settings[1 - greedy].temperature)}`;
    return (
      `Same logits, other choice: ${names[greedy]} took the most likely token, ${names[1 - greedy]} ${drew}` +
      `${others && ` (${others})`}.${marks}`
    );
  }
  if (a.seed !== b.seed) {
    const seeds = [`seed ${a.seed} against ${b.seed}`, ...words].join(", ");
    return `Same logits, other random number: ${draws.join(" and ")} (${seeds}).${marks}`;
  }
  return `Same logits, other shares: ${words.join(", ")}, so that the same random number ${draws[0]} falls on another token.${marks}`;
}

/**
 * Say which side has a watermark, as the logits shown are those before its bias.
 *
 * @param {string[]} names
 * @param {NamedSettings[]} settings
 */
function markText(names, settings) {
  const marked = names.filter((_, i) => settings[i].watermark_bias);
  if (!marked.length) return "";
  return ` The watermark of ${marked.join(" and ")} favours green tokens, which may have lower logits.`;
}

/**
 * Say which of the two logits moved most, and what moved it.
 *
 * @param {string} causes
 * @param {ComparedSide[]} sides
 * @param {Token[]} tokens
 */
function movedText(causes, [a, b], tokens) {
  const moves = tokens
    .filter(Boolean)
    .map((token) => ({ token, by: (b.logits.get(token.id) ?? NaN) - (a.logits.get(token.id) ?? NaN) }))
    .sort((one, other) => Math.abs(other.by) - Math.abs(one.by));
  const [most] = moves;
  const cause = causes ? `${causes[0].toUpperCase()}${causes.slice(1)}` : "An earlier change";
  return `${cause} moved that of ${quoted(most.token)} most, by ${signed(most.by)}.`;
}

/** @param {number} value */
export const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;
