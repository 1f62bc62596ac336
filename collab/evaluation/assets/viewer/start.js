// The page is complete: build the filters, draw the list, open the conversation that the address names or the first.

function start() {
  buildFilters();
  for (const name of ["tokens", "mask", "details"]) $(name).addEventListener("click", () => flip(name));
  $("unfold").addEventListener("click", foldAll);
  $("keys").addEventListener("click", () => $("help").showModal());
  document.addEventListener("keydown", pressed);
  applyFilters();
  $("list").focus();
  return select(Math.max(0, positionOf(location.hash.slice(1))));
}

start().then(() => requestAnimationFrame(() => performance.mark("open")));
