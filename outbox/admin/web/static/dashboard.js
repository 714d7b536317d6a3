// All pages work without this script. It refreshes pages every few seconds, which the operator can pause. It adds a
// checkbox that selects all events, a button that shows times in the browser's time zone, and buttons that copy JSON.
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

  // Times: the server writes them in UTC.

  const LOCAL = "outbox-local-time";
  const zone = document.getElementById("zone");
  let local = localStorage.getItem(LOCAL) === "yes";
  const two = (number) => String(number).padStart(2, "0");

  function inLocalTime(moment, format) {
    const clock = `${two(moment.getHours())}:${two(moment.getMinutes())}`;
    if (format === "time") return clock;
    if (format === "date") return `${two(moment.getDate())} ${moment.toLocaleString("en", { month: "short" })} ${clock}`;
    const date = `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())}`;
    return `${date} ${clock}:${two(moment.getSeconds())}`;
  }

  function showTimes() {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const format = time.dataset.format || (time.classList.contains("at") ? "full" : "");
      time.dataset.utc ??= format ? time.textContent : time.title;
      const moment = new Date(time.dateTime);
      const text = local && !Number.isNaN(moment.getTime()) ? inLocalTime(moment, format) : time.dataset.utc;
      if (format) time.textContent = text;
      else time.title = text;
    }
    for (const each of document.querySelectorAll(".zone")) each.textContent = local ? "local time" : "UTC";
    if (zone) zone.textContent = local ? "Show UTC" : "Local time";
  }

  if (zone) {
    zone.hidden = false;
    zone.addEventListener("click", () => {
      local = !local;
      localStorage.setItem(LOCAL, local ? "yes" : "no");
      showTimes();
      announcer.textContent = local ? "Times are in the browser's time zone" : "Times are in UTC";
    });
  }
  showTimes();

  // Copying

  function addCopyButtons() {
    for (const button of document.querySelectorAll("button.copy")) button.hidden = false;
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    const text = document.getElementById(button.dataset.copies).textContent;
    let copied = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Browsers allow it on this machine and over HTTPS only.
      copied = false;
    }
    announcer.textContent = button.textContent = copied ? "Copied" : "The browser refused it";
  });
  addCopyButtons();

  // What was folded, or unfolded, stays so when the page is refreshed.

  const folded = new Map();
  document.addEventListener("toggle", (event) => event.target.id && folded.set(event.target.id, event.target.open), true);

  function foldAgain() {
    for (const [id, open] of folded) {
      const details = document.getElementById(id);
      if (details) details.open = open;
    }
  }

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
    button.textContent = paused ? "Resume refresh" : "Pause refresh";
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
    showTimes();
    addCopyButtons();
    foldAgain();
    show("Live", "on");
    if (live().dataset.summary !== summary) announcer.textContent = summary = live().dataset.summary;
  });
  for (const failure of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
    document.body.addEventListener(failure, () => show("No response: this page may be out of date", "stale"));
  }

  label.hidden = button.hidden = false;
  showPaused();
})();
