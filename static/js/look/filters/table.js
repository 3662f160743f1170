// The sampling waterfall as a table: the numbers of the stages, then a row for each token.

import { FILTERS, PENALTIES } from "../../settings/sampling-settings.js";
import { BEFORE_FILTERS, DRAW, STAGES } from "./flow.js";

const NAMES = ["raw logits", "penalties", "temperature", ...FILTERS.map(({ label }) => label), "watermark"];

const ID = { name: "id", format: String };
const COLUMNS = ["of", "what", ID, ...NAMES, "drawn from", "cut by", "from", "to", "logit"];

/**
 * Return the table of what was drawn last, or null. A preview's rows come before the run's.
 *
 * @param {FlowNow | null} drawn
 * @returns {Numbers}
 */
export function numbersOf(drawn) {
  if (!drawn) return { columns: COLUMNS, rows: [] };
  const { flow, real, used, wanted, texts } = drawn;
  const rows = real
    ? [...rowsOf("preview", flow, wanted, texts), ...rowsOf("run", real, used, texts)]
    : rowsOf("run", flow, used, texts);
  return { columns: COLUMNS, rows };
}

/**
 * @param {string} of
 * @param {Flow} flow
 * @param {StageSettings} settings
 * @param {Map<number, string>} texts
 */
function rowsOf(of, flow, settings, texts) {
  const { stages, draw, greedy, bands } = flow;
  /** @param {string} what @param {unknown[]} values @param {unknown} [drawn] */
  const line = (what, values, drawn = null) =>
    [of, what, null, ...values, drawn].concat(Array(COLUMNS.length - values.length - 4).fill(null));
  /** @param {(stage: WaterfallStage) => number} value */
  const per = (value) => stages.map(value);
  /** @param {SamplingSetting} setting */
  const value = ({ name }) => settings[name];
  const penalties = PENALTIES.length > 1 ? PENALTIES.map(value).join(", ") : value(PENALTIES[0]);
  const used = [null, penalties, settings.temperature, ...FILTERS.map(value), settings.watermark_bias];
  return [
    line("setting", used, greedy ? "greedy" : draw),
    line("tokens left", per(({ n_kept: n }) => n), 1),
    line("mass left", per(({ kept }) => kept)),
    line("mass cut", per(({ removed }) => removed)),
    line("entropy, bits", per(({ entropy }) => entropy)),
    ...flow.forbidden.map(({ id, share }) => forbiddenRow(of, id, share, texts)),
    ...bands.map((band) => bandRow(of, band, texts)),
  ];
}

/**
 * A token that a grammar forbids: it has only its share of the raw logits.
 *
 * @param {string} of
 * @param {number} id
 * @param {number} share
 * @param {Map<number, string>} texts
 */
function forbiddenRow(of, id, share, texts) {
  const row = [of, texts.get(id) ?? "", id, share].concat(Array(COLUMNS.length - 4).fill(null));
  row[COLUMNS.indexOf("cut by")] = "grammar";
  return row;
}

/** @param {string} of @param {Band} band @param {Map<number, string>} texts */
function bandRow(of, { id, count, cut, sizes, low, high, logit }, texts) {
  const what = id === null ? `${count ?? "some"} other tokens` : (texts.get(id) ?? "");
  /** @param {number} column */
  const left = (column) => (cut > 0 && column >= BEFORE_FILTERS + cut ? 0 : sizes[column]);
  const shares = STAGES.map((_, column) => left(column));
  const filter = cut ? NAMES[BEFORE_FILTERS + cut] : "";
  return [of, what, id, ...shares, sizes[DRAW], filter, low, high, logit];
}
