// Calls of tools below an answer: one card each, with the arguments, the result and its time.

import { el, newButton, setText } from "../ui/dom.js";
import { duration } from "../ui/format.js";
import { ready, state } from "../state.js";
import { allTools } from "../tools/tools.js";
import { callsOf } from "../turns/tool-calls.js";
import { isAtLimit, isWaiting, maySend, resultOf, run, sendAll } from "./tool-run.js";

export class ToolCards {
  box = el("div", "tool-calls");
  #turn;
  /** @type {Map<string, Card>} */
  #cards = new Map();
  #note = el("p", "tool-note");
  #send = newButton("Send results", () => sendAll(this.#turn), "text");

  /** @param {ModelTurn} turn */
  constructor(turn) {
    this.#turn = turn;
    this.box.hidden = true;
  }

  draw() {
    const turn = this.#turn;
    const calls = callsOf(turn);
    this.box.hidden = !calls.length;
    if (!calls.length) return;
    const cards = calls.map((call) => this.#cardOf(call));
    if (this.#cards.size !== calls.length) this.#cards = new Map(cards.map((card) => [card.id, card]));
    const nodes = [...cards.map(({ node }) => node), this.#note, this.#send];
    if (nodes.some((node, i) => this.box.children[i] !== node)) this.box.replaceChildren(...nodes);
    const waits = isWaiting(turn);
    for (const card of cards) card.draw(turn, waits && !turn.tool_use);
    this.#send.hidden = !maySend(turn);
    this.#send.disabled = !ready();
    const limit = state.tools.rounds;
    setText(
      this.#note,
      waits && state.tools.auto && isAtLimit()
        ? `The model called tools ${limit === 1 ? "once" : `${limit} times`} for this message, the limit. Run the tool to go on.`
        : "",
    );
  }

  /** @param {ToPage.CalledTool} call */
  #cardOf(call) {
    const found = this.#cards.get(call.id) ?? new Card(this.#turn, call);
    this.#cards.set(call.id, found);
    return found;
  }
}

class Card {
  node = el("section", "tool-call");
  #call;
  #state = el("span", "tool-state");
  #result = el("pre", "tool-result");
  #run;

  /** @param {ModelTurn} turn @param {ToPage.CalledTool} call */
  constructor(turn, call) {
    this.#call = call;
    this.#run = newButton("Run tool", () => run(turn, call), "send");
    const head = el("p", "tool-head");
    const label = allTools().find(({ name }) => name === call.name)?.label ?? call.name;
    head.append(el("b", "", label), this.#state, this.#run);
    this.node.setAttribute("aria-label", `Call of ${call.name}`);
    this.#result.tabIndex = 0; // it may scroll
    this.node.append(head, argumentsList(call.arguments), this.#result);
  }

  get id() {
    return this.#call.id;
  }

  /** @param {ModelTurn} turn @param {boolean} waits */
  draw(turn, waits) {
    const { id } = this.#call;
    const sent = turn.tool_use?.results.find((each) => each.id === id);
    const result = sent ?? resultOf(id);
    this.node.dataset.state = result ? (result.failed ? "failed" : "done") : result === null ? "running" : "waiting";
    setText(this.#state, result ? `${result.failed ? "failed" : "ran"} in ${duration(result.ms)}` : result === null ? "running" : waits ? "wants to run" : "not run");
    this.#run.hidden = !waits || result !== undefined;
    this.#run.disabled = !ready();
    this.#result.hidden = !result;
    setText(this.#result, result?.content ?? "");
  }
}

/** The arguments, as names and values; as the model wrote them, if they are no object. @param {string} text */
function argumentsList(text) {
  let given;
  try {
    given = JSON.parse(text || "{}");
  } catch {
    given = null;
  }
  if (typeof given !== "object" || given === null || Array.isArray(given)) return el("pre", "tool-arguments", text);
  const entries = Object.entries(given);
  if (!entries.length) return el("p", "tool-arguments", "without arguments");
  const list = el("dl", "tool-arguments");
  for (const [name, value] of entries)
    list.append(el("dt", "", name), el("dd", "", typeof value === "string" ? value : JSON.stringify(value)));
  return list;
}
