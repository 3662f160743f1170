// Digest of the weights on the device: equal before and after runs, because inference changes none.

import { isLocal } from "../../net/connection.js";
import { inspect } from "../../net/inspect.js";
import { changed, ready } from "../../state.js";
import { el, newButton, setText } from "../../ui/dom.js";
import { bytes, count, sentence } from "../../ui/format.js";

/** @typedef {{sha256: string, nTensors: number, nBytes: number, time: Date}} Digest */

const IDLE = "Inference changes no weight. Take the digest before and after a run.";
const NOT_HERE = "The engine in the browser does not read its weights back.";
const clock = new Intl.DateTimeFormat("en", { timeStyle: "medium", hourCycle: "h23" });

export class WeightsDigest {
  /** @param {HTMLElement} root */
  constructor(root) {
    const box = root.appendChild(el("div", "wt-digest"));
    this.button = newButton("Digest of the weights", () => this.#measure(), "text");
    this.says = el("p");
    this.says.setAttribute("role", "status");
    this.list = el("div");
    box.append(this.button, this.says, this.list);
    /** Of the loaded model, oldest first. @type {Digest[]} */
    this.taken = [];
    this.isMeasuring = false;
    this.problem = "";
  }

  /** Forget those of another model. */
  clear() {
    this.taken = [];
    this.problem = "";
  }

  draw() {
    this.button.disabled = this.isMeasuring || isLocal() || !ready();
    setText(this.says, this.problem || (this.isMeasuring ? "Reading the weights back …" : this.#summary()));
    this.list.replaceChildren(
      ...this.taken.map(({ sha256, time }) => {
        const row = el("p", "", `${clock.format(time)} `);
        row.append(el("code", "", sha256));
        return row;
      }),
    );
  }

  #summary() {
    const last = this.taken.at(-1);
    if (!last) return isLocal() ? NOT_HERE : IDLE;
    const read = `SHA-256 of ${count(last.nTensors)} tensors, ${bytes(last.nBytes)}, read back from the device`;
    if (this.taken.length === 1) return `${read}. Let the model write, then take it again.`;
    const isSame = this.taken.every(({ sha256 }) => sha256 === last.sha256);
    return isSame ? `${read}: the same each time.` : `${read}: it differs, so weights have changed.`;
  }

  async #measure() {
    const { taken } = this;
    this.isMeasuring = true;
    this.problem = "";
    changed("look");
    try {
      const { info } = await inspect({ kind: "digest" });
      if (info.sha256 === undefined) this.problem = "This engine has no weights on a GPU.";
      else
        taken.push({
          sha256: String(info.sha256),
          nTensors: Number(info.n_tensors),
          nBytes: Number(info.n_bytes),
          time: new Date(),
        });
    } catch (error) {
      this.problem = sentence(/** @type {Problem} */ (error).message);
    }
    this.isMeasuring = false;
    changed("look");
  }
}
