// What scripts add to pages that work without them: live refresh that can be paused, and ticking all at once.
"use strict";

(() => {
  const PAUSED = "outbox-paused";
  const label = document.getElementById("refreshed");
  const button = document.getElementById("pause");
  const announcer = document.createElement("p");
  announcer.className = "hidden";
  announcer.setAttribute("role", "status");
  document.body.append(announcer);

  const live = () => document.getElementById("live");

  // Ticks

  const boxes = () => [...document.querySelectorAll('#live input[type="checkbox"][name="id"]')];

  function countTicks() {
    const all = document.getElementById("tick-all");
    const ticked = boxes().filter((box) => box.checked).length;
    const told = document.getElementById("ticked");
    if (told) told.textContent = ticked ? ` (${ticked})` : "";
    if (all) {
      all.hidden = false;
      all.checked = ticked > 0 && ticked === boxes().length;
      all.indeterminate = ticked > 0 && !all.checked;
    }
    for (const box of boxes()) box.closest("tr").classList.toggle("ticked", box.checked);
  }

  document.addEventListener("change", (event) => {
    if (event.target.id === "tick-all") for (const box of boxes()) box.checked = event.target.checked;
    if (event.target.id === "tick-all" || event.target.name === "id") {
      const some = document.querySelector('#live input[name="scope"][value="selected"]');
      if (some && event.target.checked) some.checked = true;
      countTicks();
    }
  });
  countTicks();

  // Refresh

  if (!button || !label || !live() || !window.htmx) return;
  const seconds = Number(label.dataset.seconds);
  let paused = sessionStorage.getItem(PAUSED) === "yes";
  let summary = live().dataset.summary;

  function show(text, state) {
    label.textContent = text;
    label.className = state;
  }

  function showPaused() {
    button.textContent = paused ? "Resume" : "Pause";
    button.setAttribute("aria-pressed", String(paused));
    show(paused ? "Paused" : "Live", paused ? "paused" : "on");
  }

  // Nothing is pulled away from under somebody's hands.
  const busy = () =>
    document.hidden ||
    boxes().some((box) => box.checked) ||
    (document.activeElement && live().contains(document.activeElement)) ||
    String(window.getSelection()) !== "";

  setInterval(() => {
    if (!paused && !busy()) window.htmx.trigger(live(), "refresh");
  }, seconds * 1000);

  button.addEventListener("click", () => {
    paused = !paused;
    sessionStorage.setItem(PAUSED, paused ? "yes" : "no");
    showPaused();
    announcer.textContent = paused ? "Refreshing is paused" : "Refreshing goes on";
  });

  document.body.addEventListener("htmx:afterSettle", () => {
    countTicks();
    show("Live", "on");
    if (live().dataset.summary !== summary) announcer.textContent = summary = live().dataset.summary;
  });
  for (const trouble of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
    document.body.addEventListener(trouble, () => show("No answer: what you see may be old", "stale"));
  }

  label.hidden = button.hidden = false;
  showPaused();
})();
