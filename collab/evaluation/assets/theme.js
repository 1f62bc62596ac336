// The theme button: light, dark, or what the system prefers until somebody chooses.
{
  const root = document.documentElement;
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const store = {
    read() { try { return localStorage.getItem("collab-theme"); } catch { return null; } },
    write(theme) { try { localStorage.setItem("collab-theme", theme); } catch { /* a file may have no storage */ } },
  };
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);
  const button = document.getElementById("theme");
  const show = () => {
    button.textContent = dark() ? "☀" : "☾";
    button.setAttribute("aria-label", dark() ? "Use the light theme" : "Use the dark theme");
  };
  const chosen = store.read();
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    store.write(root.dataset.theme);
    show();
  });
  systemDark.addEventListener("change", show);
  show();
}
