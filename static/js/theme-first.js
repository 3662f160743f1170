// Sets the chosen theme before the first paint, so that the other one never flashes.
(() => {
  try {
    const theme = localStorage.getItem("tokenglass.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage may be forbidden; the system's theme is used then.
  }
})();
