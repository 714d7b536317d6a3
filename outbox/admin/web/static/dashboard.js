// All pages work without this script. It refreshes pages every few seconds, which the operator can pause, and it adds a
// checkbox that selects all events.
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

  // Selecting events

  const boxes = () => [...document.querySelectorAll('#live input[type="checkbox"][name="id"]')];

  function countSelected() {
    const all = document.getElementById("select-all");
    const selected = boxes().filter((box) => box.checked).length;
    const count = document.getElementById("selected-count");
    if (count) count.textContent = selected ? ` (${selected})` : "";
    if (all) {
      all.hidden = false;
      all.checked = selected > 0 && selected === boxes().length;
      all.indeterminate = selected > 0 && !all.checked;
    }
    for (const box of boxes()) box.closest("tr").classList.toggle("selected", box.checked);
  }

  document.addEventListener("change", (event) => {
    if (event.target.id === "select-all") for (const box of boxes()) box.checked = event.target.checked;
    if (event.target.id === "select-all" || event.target.name === "id") {
      const scope = document.querySelector('#live input[name="scope"][value="selected"]');
      if (scope && event.target.checked) scope.checked = true;
      countSelected();
    }
  });
  countSelected();

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

  // Don't refresh while the page is hidden, or while the operator has selected events or text or has the keyboard focus in
  // the list.
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
    announcer.textContent = paused ? "Refresh is paused" : "Refresh continues";
  });

  document.body.addEventListener("htmx:afterSettle", () => {
    countSelected();
    show("Live", "on");
    if (live().dataset.summary !== summary) announcer.textContent = summary = live().dataset.summary;
  });
  for (const failure of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
    document.body.addEventListener(failure, () => show("No response: this page may be out of date", "stale"));
  }

  label.hidden = button.hidden = false;
  showPaused();
})();
