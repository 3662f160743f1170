// What this browser keeps of models, how much room is left, and the buttons that remove it.

import { forgetModel, keptModels, storageQuota } from "../local/gpu/weight-cache.js";
import { byId, el, one, setText } from "../ui/dom.js";
import { bytes } from "../ui/format.js";

const PART = "Missing files are fetched when the model runs again.";
const NOTHING = "Nothing is kept yet. A model that runs here is fetched once.";

/** Draw the list anew. */
export async function drawKept() {
  const [models, quota] = await Promise.all([keptModels(), storageQuota()]);
  const sum = models.reduce((total, each) => total + each.bytes, 0);
  setText(byId("kept-sum"), models.length ? ` ${bytes(sum)}` : " nothing");
  byId("kept-models").replaceChildren(...models.map(row));
  const room = quota
    ? `This site uses ${bytes(quota.used)} of the ${bytes(quota.quota)} that the browser allows.`
    : "This browser does not report how much storage it allows.";
  const isPart = models.some((each) => each.bytes < each.total);
  const first = models.length ? (isPart ? PART : "") : NOTHING;
  setText(byId("kept-quota"), `${first} ${room}`.trim());
}

/** @param {{model: string, bytes: number, total: number}} kept */
function row({ model, bytes: kept, total }) {
  const item = el("li");
  const size = kept < total ? `${bytes(kept)} of ${bytes(total)}` : bytes(kept);
  const button = el("button", "text", "Remove");
  button.type = "button";
  button.setAttribute("aria-label", `Remove ${model} from this browser`);
  button.addEventListener("click", () => remove(model));
  item.append(el("span", "offer-name", model), el("span", "sub", size), button);
  return item;
}

/** @param {string} model */
async function remove(model) {
  await forgetModel(model);
  await drawKept();
  one(byId("kept"), "summary").focus();
}
