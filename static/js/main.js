// Entry point of the page: sets up every part in order.

import { setUpAnswerOptions } from "./chat/answer-options.js";
import { setUpAbout } from "./panels/about.js";
import { setUpCacheReuse } from "./chat/cache-reuse.js";
import { setUpCandidates } from "./panels/candidates.js";
import { setUpMessageClock } from "./ui/message-clock.js";
import { setUpPlaybackBar } from "./replay/playback-bar.js";
import { restorePrompt, setUpComposer } from "./chat/composer.js";
import { setUpCore } from "./core-sample/core-sample.js";
import { setUpCoreControls } from "./core-sample/controls.js";
import { setUpCosts } from "./panels/capture-cost.js";
import { setUpReplaceTokenRun } from "./chat/replace-token-run.js";
import { setUpDivider } from "./ui/divider.js";
import { measureGrid } from "./core-sample/grid.js";
import { start } from "./page/incoming.js";
import { setUpKeys } from "./page/keyboard.js";
import { setUpWords } from "./words/words.js";
import { setUpLacks } from "./ui/lacks.js";
import { setUpLayers } from "./panels/layers.js";
import { closeInstrument, setUpInstruments } from "./look/frame.js";
import { setUpLoras } from "./panels/loras.js";
import { setUpModels } from "./panels/models.js";
import { setUpNavigation } from "./page/navigation.js";
import { setUpNotice } from "./page/notice.js";
import { forget } from "./panels/overhead.js";
import { INITIAL_SETTINGS, LIVE } from "./settings/sampling-settings.js";
import { savedSettings, saveSoon } from "./turns/persist.js";
import { pushSettings } from "./turns/live-updates.js";
import { setUpBranchNote } from "./conversations/branch-note.js";
import { setUpDrawer } from "./conversations/drawer.js";
import { newConversation } from "./conversations/keeper.js";
import { setUpLibrary } from "./conversations/library.js";
import { newStore, setUpInterventionStore } from "./interventions/intervention-store.js";
import { setUpInterventionNote } from "./panels/intervention-note.js";
import { setUpReplayDialog } from "./replay/dialog.js";
import { setUpRecordedRun } from "./replay/recorded-run.js";
import { setUpReading } from "./ui/reading.js";
import { setUpRerun } from "./chat/rerun.js";
import { setUpRibbon } from "./core-sample/ribbon.js";
import { setUpRunStrip } from "./panels/run-strip.js";
import { setUpSampling } from "./panels/sampling.js";
import { openNextToken, setUpSheets } from "./ui/bottom-sheets.js";
import { beginState, changed, on, sameEngine, setSettings, state } from "./state.js";
import { watchSizes } from "./ui/dom.js";
import { setUpStartPage } from "./start/start-page.js";
import { setUpPace } from "./chat/pace.js";
import { setUpStatusLine } from "./chat/status-line.js";
import { setUpSummarize } from "./chat/summarize.js";
import { setUpSystemPrompt } from "./chat/system-prompt.js";
import { setUpTheme } from "./ui/theme.js";
import { setUpToolRuns } from "./chat/tool-run.js";
import { setUpTotals } from "./panels/step-totals.js";
import { setUpLessons } from "./lessons/entry.js";
import { setUpTour } from "./tour/entry.js";
import { setUpFollowing } from "./ui/following.js";
import { setUpTranscript } from "./chat/transcript.js";
import { setUpTruncation } from "./chat/truncation.js";
import { keepRow } from "./view.js";

const saved = savedSettings();
beginState({
  settings: { ...INITIAL_SETTINGS, ...saved?.settings },
  lastPreset: saved?.lastPreset ?? "",
  capture: saved?.capture ?? true,
  mode: saved?.mode ?? "chat",
  truncation: saved?.truncation ?? "disabled",
  cacheReuse: saved?.cacheReuse ?? null,
  pace: saved?.pace ?? null,
  format: saved?.format ?? state.format,
  tools: { ...state.tools, ...saved?.tools },
  interventions: newStore(),
  conversation: newConversation(),
});

setUpTheme();
on("hello size", measureGrid);
on("hello", onHello);
setUpTranscript(openNextToken);
setUpCore();
setUpCoreControls();
setUpDivider();
setUpReading(closeInstrument);
setUpLayers();
setUpTotals();
setUpCandidates();
setUpReplaceTokenRun();
setUpRibbon();
setUpRunStrip();
setUpCosts();
setUpSampling();
setUpTruncation();
setUpSummarize();
setUpCacheReuse();
setUpAnswerOptions();
setUpToolRuns();
setUpSheets();
setUpAbout();
setUpLacks();
setUpModels();
measureGrid();
const isRestored = start(restorePrompt);
setUpComposer();
setUpSystemPrompt();
setUpStartPage();
setUpStatusLine();
setUpPace();
setUpInterventionStore(() => {
  saveSoon();
  pushSettings();
});
setUpLoras();
setUpInterventionNote();
setUpRerun();
setUpNotice();
setUpPlaybackBar();
setUpReplayDialog();
setUpLibrary();
setUpDrawer();
setUpBranchNote();
setUpKeys();
setUpWords();
setUpInstruments();
setUpNavigation(isRestored);
setUpRecordedRun();
setUpTour();
setUpLessons();
setUpFollowing();
setUpMessageClock();
addEventListener("resize", () => changed("size"));
// The window's event comes before the new sizes are known.
watchSizes(() => changed("size"));
document.fonts.ready.then(() => changed("size"));
changed("hello", "settings", "turns", "connection", "size");

/** @type {ToPage.Hello | null} */
let known = null;

/** Drop measured overheads and fix the focused layer when the model or device changed. */
function onHello() {
  const { hello } = state;
  if (!hello) return;
  if (!state.replay) {
    if (known && !sameEngine(known, hello)) forget();
    known = hello;
  }
  keepRow();
  if (!saved && !state.replay) adoptDefaults(hello.defaults);
}

let adopted = false;

/**
 * Use the server's default settings on the first visit. The seed stays the page's own.
 *
 * @param {ToPage.SamplingParams} defaults
 */
function adoptDefaults(defaults) {
  if (adopted) return;
  adopted = true;
  const { stop } = defaults;
  const live = Object.fromEntries(LIVE.map((name) => [name, defaults[name]]));
  setSettings({ ...live, stop });
}
