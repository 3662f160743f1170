// Puts the page together.

import { setUpAbout } from "./about.js";
import { setUpCandidates } from "./candidates.js";
import { setUpClock } from "./clock.js";
import { setUpFilmBar } from "./filmbar.js";
import { giveBack, setUpComposer } from "./composer.js";
import { setUpCore } from "./core.js";
import { setUpCoreControls } from "./corecontrols.js";
import { setUpCosts } from "./costs.js";
import { setUpForcing } from "./forcing.js";
import { measureGrid } from "./grid.js";
import { start } from "./inbox.js";
import { setUpKeys } from "./keys.js";
import { setUpLayers } from "./layers.js";
import { setUpLook } from "./look.js";
import { setUpLoras } from "./loras.js";
import { setUpModels } from "./models.js";
import { setUpNotice } from "./notice.js";
import { forget } from "./overhead.js";
import { LIVE, PRESETS } from "./params.js";
import { savedSettings } from "./persist.js";
import { deskOf, setUpReachDesk } from "./reachdesk.js";
import { setUpReachNote } from "./reachnote.js";
import { setUpReplayDialog } from "./replaydialog.js";
import { setUpRewriting } from "./rewrite.js";
import { setUpRibbon } from "./ribbon.js";
import { setUpRunStrip } from "./runstrip.js";
import { setUpSampling } from "./sampling.js";
import { openNextToken, setUpSheets } from "./sheets.js";
import { changed, on, sameEngine, state } from "./state.js";
import { setUpStatusLine } from "./statusline.js";
import { setUpTheme } from "./theme.js";
import { setUpTotals } from "./totals.js";
import { setUpTour } from "./tour.js";
import { setUpFollowing, setUpTranscript } from "./transcript.js";
import { view } from "./view.js";

const DEFAULTS = { ...PRESETS.Balanced, max_tokens: 256, seed: "", stop: [] };
const saved = savedSettings();
state.settings = { ...DEFAULTS, ...saved?.settings };
state.capture = saved?.capture ?? true;
state.mode = saved?.mode ?? "chat";
state.reach = deskOf();

setUpTheme();
on("hello size", measureGrid);
on("hello", onHello);
setUpTranscript(openNextToken);
setUpCore();
setUpCoreControls();
setUpLayers();
setUpTotals();
setUpCandidates();
setUpForcing();
setUpRibbon();
setUpRunStrip();
setUpCosts();
setUpSampling();
setUpSheets();
setUpAbout();
setUpModels();
measureGrid();
start(giveBack);
setUpComposer();
setUpStatusLine();
setUpReachDesk();
setUpLoras();
setUpReachNote();
setUpRewriting();
setUpNotice();
setUpFilmBar();
setUpReplayDialog();
setUpKeys();
setUpLook();
setUpTour();
setUpFollowing();
setUpClock();
addEventListener("resize", () => changed("size"));
document.fonts.ready.then(() => changed("size"));
changed("hello", "settings", "turns", "line", "size");

let known = null;

/** Another model or device: what was measured before does not count for it. */
function onHello() {
  const { hello } = state;
  if (!hello) return;
  if (!state.replay) {
    if (known && !sameEngine(known, hello)) forget();
    known = hello;
  }
  const { n_layers: n } = hello.model;
  if (!view.row || view.row.layer >= n) view.row = { layer: Math.floor(n * 0.75), part: 1 };
  if (!saved && !state.replay) adoptDefaults(hello.defaults);
}

let adopted = false;

/** On the first visit the settings are the server's (but for the seed, which the page draws). */
function adoptDefaults(defaults) {
  if (adopted) return;
  adopted = true;
  for (const name of [...LIVE, "stop"]) state.settings[name] = defaults[name];
  changed("settings");
}
