"use strict";
// Says whether the page is live, and lets the keyboard choose lines. Everything works without it.
(() => {
  const SILENT_MS = 12000;
  const state = document.getElementById("live-state");
  const live = document.querySelector("#live");
  const isLive = live !== null && live.hasAttribute("hx-sse:connect");
  let heard = new Date();
  let stale = false;

  function say(text, isStale) {
    stale = isStale;
    if (state.textContent !== text) state.textContent = text;
    state.classList.toggle("stale", isStale);
  }
  function clock(time) {
    return time.toISOString().slice(11, 19) + " UTC";
  }
  function isHeard() {
    heard = new Date();
    say("● live", false);
  }
  function isSilent(why) {
    say("○ not live since " + clock(heard) + (why ? ": " + why : ""), true);
  }
  if (isLive) {
    live.addEventListener("beat", isHeard);
    live.addEventListener("htmx:sse:after:message", (event) => {
      if (!event.detail.message.event) isHeard();
    });
    live.addEventListener("stale", (event) => isSilent(event.detail.data));
    live.addEventListener("htmx:sse:error", () => isSilent("the server does not answer"));
    live.addEventListener("htmx:response:error", () => later());
    document.addEventListener("htmx:error", () => isSilent("the server does not answer"));
    setInterval(() => {
      if (!stale && Date.now() - heard > SILENT_MS) isSilent("the server does not answer");
    }, 1000);
  }
  // No stream was to be had: look again later, unless something may have been typed.
  function later() {
    isSilent("too many pages are open");
    if (document.querySelector("form:not([method=dialog])") === null) {
      setTimeout(() => location.reload(), 10000);
    }
  }

  let chosen = -1;
  let last = "";
  function lines() {
    return [...document.querySelectorAll("a.row-link")];
  }
  function choose(step) {
    const links = lines();
    if (links.length === 0) return;
    chosen = Math.min(Math.max(chosen + step, 0), links.length - 1);
    document.querySelectorAll("tr.chosen").forEach((row) => row.classList.remove("chosen"));
    links[chosen].closest("tr").classList.add("chosen");
    links[chosen].focus();
  }
  document.addEventListener("keydown", (event) => {
    const isTyped = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    if (isTyped || event.ctrlKey || event.metaKey || event.altKey) return;
    const before = last;
    last = event.key;
    if (event.key === "j") choose(1);
    else if (event.key === "k") choose(-1);
    else if (event.key === "p" && before === "g") location.assign(document.body.dataset.pipelines);
    else if (event.key === "?") document.getElementById("keys").showModal();
    else if (event.key === "/") {
      const find = document.getElementById("find");
      if (find === null) return;
      find.focus();
      event.preventDefault();
    }
  });
})();
