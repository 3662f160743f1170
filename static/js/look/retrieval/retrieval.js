// Retrieval: documents in chunks, the chunks nearest to a question, the prompt made of them, and what the
// answer took from each. The server keeps the documents and their index.

import { hasServer, isLocal } from "../../net/connection.js";
import { Missing } from "../shared/context.js";
import { Views } from "../shared/views.js";
import { answerView } from "./answer.js";
import { documentsView } from "./documents.js";
import { newQuestionView } from "./question.js";

/** @type {Views<Focus>} */
const views = new Views("retrieval-view", [documentsView, newQuestionView(() => views.open(answerView)), answerView]);

/** @type {Instrument} */
export const retrieval = {
  needs: "nothing",
  asks: true,
  setUp: (root) => views.setUp(root),
  show(focus) {
    if (!hasServer) throw new Missing("Only a server keeps documents, and this page has none.");
    if (isLocal()) throw new Missing("The model runs in this browser. Retrieval needs it on the server.");
    return views.show(focus);
  },
  hide: (isClosed) => views.hide(isClosed),
  table: () => views.table(),
};
