// Scrolling of the transcript: it follows the end of the text until somebody scrolls up.

import { on, state } from "../state.js";
import { byId } from "./dom.js";

/** The transcript scrolls with the text while its end is this near. */
const NEAR_END_PX = 40;
const scroller = byId("turns");
let stick = true;
let last = { top: 0, height: 0, clientHeight: 0 };

/** Set up last: scrolling forces the layout of the frame. */
export function setUpFollowing() {
  scroller.addEventListener("scroll", onScroll, { passive: true });
  // A smooth scroll upwards starts within NEAR_END_PX, so the wheel itself stops the following.
  scroller.addEventListener(
    "wheel",
    ({ deltaY }) => {
      if (deltaY < 0) stick = false;
    },
    { passive: true },
  );
  new ResizeObserver(scrollToEnd).observe(scroller);
  on("turns tokens hello", scrollToEnd);
}

/**
 * Scrolling up stops following, reaching the end resumes it; a text that shrank or a window that grew
 * does neither.
 */
function onScroll() {
  const { scrollTop: top, scrollHeight: height, clientHeight } = scroller;
  if (height - top - clientHeight < NEAR_END_PX) stick ||= top > last.top;
  const isLess = height < last.height || clientHeight > last.clientHeight;
  if (top < last.top - 1 && !isLess) stick = false;
  last = { top, height, clientHeight };
}

/** Scroll to the end of the conversation. */
export function goToEnd() {
  stick = true;
  scrollToEnd();
}

/** Scroll to a token; the transcript no longer follows the text if that is above. @param {Element} node */
export function goTo(node) {
  const { scrollTop } = scroller;
  node.scrollIntoView({ block: "nearest" });
  if (scroller.scrollTop < scrollTop) stick = false;
}

function scrollToEnd() {
  if (stick && state.turns.length) scroller.scrollTop = scroller.scrollHeight;
}
