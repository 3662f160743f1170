// Load the page again: it was opened by a link on another site, for which browsers withhold the
// session's cookie (app/http/security.py). A reload keeps what the address says after the hash; where
// that counts as coming from the other site, too, the page opens without.
const [loaded] = performance.getEntriesByType("navigation");
if (/** @type {PerformanceNavigationTiming} */ (loaded).type === "reload") location.replace("./");
else location.reload();
