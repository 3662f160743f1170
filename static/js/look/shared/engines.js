// The engines that serve the model, and the choice of the one that an instrument shows: a list that is
// there only where there are several.

import { el, setText } from "../../ui/dom.js";
import { ask } from "../../net/ask.js";
import { isLocal } from "../../net/connection.js";
import { changed } from "../../state.js";
import { view } from "../../view.js";


/** Pause between questions (ms): the engines report their figures once a second. */
const REST_MS = 1000;
/** What an engine does that is not ready. @type {Record<string, string>} */
export const STATES = {
  loading: "loads the model",
  restarting: "starts again",
  failed: "has failed",
  away: "not needed now",
};

/**
 * {state, stats} of every engine (app/engine_client.py); []: no server, or it did not say; null: not
 * known yet.
 *
 * @type {Answers.ReplicaStatus[] | null}
 */
let replicas = null;
/** Number that a person chose, from 1; null: that of the run being watched. @type {number | null} */
let chosen = null;
/**
 * What `followEngines` began: `loaded` resolves when `replicas` is known, `timer` asks again; or null.
 *
 * @type {{loaded: Promise<void>, timer: number} | null}
 */
let following = null;

/**
 * Ask again and again until `leaveEngines`; once only if there is one engine. Resolves when it is known
 * how many there are.
 */
export function followEngines() {
  following ??= begin();
  return following.loaded;
}

function begin() {
  const mine = { loaded: Promise.resolve(), timer: 0 };
  if (isLocal()) replicas = [];
  const loading = isLocal() ? mine.loaded : load(mine);
  if (!replicas) mine.loaded = loading;
  return mine;
}

/** Stop asking, and show the engine of the run being watched next time. */
export function leaveEngines() {
  clearTimeout(following?.timer);
  following = chosen = null;
}

/** A question that fails leaves what is known. @param {{timer: number}} mine */
async function load(mine) {
  const answer = await ask("api/replicas").catch(() => ({ replicas: engines() }));
  if (following !== mine) return;
  replicas = answer.replicas;
  if (engines().length > 1) mine.timer = setTimeout(load, REST_MS, mine);
  changed("look");
}

/** {state, stats} of every engine, in the order of their numbers. */
export const engines = () => replicas ?? [];

/** @param {number} number */
const isReady = (number) => engines()[number - 1]?.state === "ready";
const watched = () => view.answer?.segment?.engine ?? 0;

/** Number of the engine that is shown, from 1; 0 if there is one only; null while that is not known. */
export function engineShown() {
  if (replicas === null) return null;
  if (replicas.length < 2) return 0;
  const first = 1 + Math.max(0, replicas.findIndex(({ state }) => state === "ready"));
  return [chosen ?? 0, watched()].find(isReady) ?? first;
}

/** "the engine", "engine 2 of 3" */
export const engineInWords = () =>
  engineShown() ? `engine ${engineShown()} of ${engines().length}` : "the engine";

export class EngineChoice {
  #label = el("label", "look-engine", "Shown ");
  #list = this.#label.appendChild(el("select"));

  /** @param {HTMLElement} root */
  constructor(root) {
    root.append(this.#label);
    this.#list.addEventListener("change", () => {
      chosen = Number(this.#list.value);
      changed("look");
    });
  }

  draw() {
    this.#label.hidden = engines().length < 2;
    if (this.#label.hidden) return;
    const { options } = this.#list;
    if (options.length !== engines().length) this.#list.replaceChildren(...engines().map(newOption));
    engines().forEach(({ state }, i) => {
      const about = STATES[state] ?? (i + 1 === watched() ? "this answer" : "");
      setText(options[i], `Engine ${i + 1}${about && ` · ${about}`}`);
      options[i].disabled = state !== "ready";
    });
    this.#list.value = String(engineShown());
  }
}

/** @param {Answers.ReplicaStatus} _ @param {number} i */
function newOption(_, i) {
  const option = el("option");
  option.value = String(i + 1);
  return option;
}
