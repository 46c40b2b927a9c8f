// Sets the chosen colours before the page is drawn, and turns them at the button: system, light, dark.
(() => {
  const root = document.documentElement, themes = ["system", "light", "dark"];
  let theme = "system";
  try { theme = localStorage.getItem("theme") ?? "system"; } catch { /* no storage: the system's colours */ }
  const apply = () => {
    if (theme === "system") delete root.dataset.theme; else root.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${theme}`;
    window.dispatchEvent(new Event("themechange"));
  };
  apply();
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      theme = themes[(themes.indexOf(theme) + 1) % themes.length];
      try { localStorage.setItem("theme", theme); } catch { /* lasts as long as the page */ }
      apply();
    });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
})();
