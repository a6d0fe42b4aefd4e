// Replaces the live part of a page with what the server sends, and zooms charts. The pages work without this script.
"use strict";
const main = document.querySelector("main[data-live]");
const part = document.getElementById("part");
const stale = document.getElementById("stale");
const pulse = document.getElementById("pulse");
const PATIENCE = 4000; // milliseconds without an event: what is shown is stale

if (main && part && window.EventSource) {
  let source = null, seen = Date.now(), readAt = Date.now() / 1000, said = null;

  const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19) + " UTC";

  const showState = () => {
    const late = source !== null && Date.now() - seen > PATIENCE;
    const text = said ? `Stale since ${clock(readAt)}: ${said}` : late ? `Stale since ${clock(readAt)}: no connection to the server. Trying again.` : "";
    if (stale.textContent !== text) stale.textContent = text;
    stale.hidden = !text;
    pulse.hidden = Boolean(text) || source === null;
    document.body.classList.toggle("is-stale", Boolean(text));
  };

  // The part is not replaced while a person selects text in it; a focused link keeps its focus.
  const replace = (html) => {
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && part.contains(selection.anchorNode)) return;
    const links = [...part.querySelectorAll("a, button, [tabindex]")];
    const focused = links.indexOf(document.activeElement);
    const mark = focused < 0 ? null : document.activeElement.getAttribute("href");
    const scrolled = [...part.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    part.innerHTML = html;
    part.querySelectorAll(".scroll").forEach((one, n) => { one.scrollLeft = scrolled[n] || 0; });
    if (focused >= 0) {
      const now = [...part.querySelectorAll("a, button, [tabindex]")];
      const again = now.find((one) => mark !== null && one.getAttribute("href") === mark) || now[focused];
      if (again) again.focus({ preventScroll: true });
    }
  };

  const open = () => {
    if (source !== null || document.hidden) return;
    seen = Date.now();
    source = new EventSource(main.dataset.live);
    source.addEventListener("part", (event) => {
      const data = JSON.parse(event.data);
      seen = Date.now();
      said = data.error;
      readAt = data.at;
      if (!data.error) replace(data.html);
      showState();
    });
    source.addEventListener("error", () => {
      // A browser gives up when the server answers with an error; then we try again by ourselves.
      if (source !== null && source.readyState === EventSource.CLOSED) {
        source = null;
        setTimeout(open, 2000);
      }
      showState();
    });
  };

  const close = () => {
    if (source !== null) source.close();
    source = null;
  };

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);
  setInterval(() => { if (!document.hidden) { if (source === null) open(); showState(); } }, 1000);
  open();
}

// Dragging over a chart zooms into that time: the server draws it anew.
for (const charts of document.querySelectorAll(".charts[data-zoom]")) {
  const begins = Number(charts.dataset.begins), ends = Number(charts.dataset.ends);
  for (const plot of charts.querySelectorAll(".plot")) {
    const marks = plot.querySelector(".marks");
    const band = plot.appendChild(Object.assign(document.createElement("div"), { className: "band", hidden: true }));
    let from = null;
    const share = (event) => {
      const room = marks.getBoundingClientRect();
      return Math.min(1, Math.max(0, (event.clientX - room.left) / room.width));
    };
    const draw = (to) => {
      const room = marks.getBoundingClientRect(), left = plot.getBoundingClientRect().left;
      band.style.left = `${room.left - left + Math.min(from, to) * room.width}px`;
      band.style.width = `${Math.abs(to - from) * room.width}px`;
      band.hidden = Math.abs(to - from) < 0.02;
    };
    marks.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch") return;
      from = share(event);
      marks.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    marks.addEventListener("pointermove", (event) => { if (from !== null) draw(share(event)); });
    marks.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const to = share(event), low = Math.min(from, to), high = Math.max(from, to);
      from = null;
      band.hidden = true;
      const length = (ends - begins) * (high - low);
      if (high - low < 0.02 || length < 60) return;
      const address = new URL(charts.dataset.zoom, location.href);
      address.searchParams.set("from", (begins + low * (ends - begins)).toFixed(0));
      address.searchParams.set("to", (begins + high * (ends - begins)).toFixed(0));
      location.assign(address);
    });
    marks.addEventListener("pointercancel", () => { from = null; band.hidden = true; });
  }
}
