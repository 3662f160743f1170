// Runs before the first paint, so that a chosen theme never flashes in the other one.
(() => {
  try {
    const theme = localStorage.getItem("tokenglass.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage may be forbidden; the system's theme is a good one too.
  }
})();
