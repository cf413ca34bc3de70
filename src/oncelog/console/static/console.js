// Keeps a page up to date while it is looked at, and adds keys. Pages work without it.

const live = document.getElementById("live");
const liveState = () => document.getElementById("live-state");
let number = Number(document.body.dataset.number);
let leave = null;
let isWaiting = false;
let isStale = false;

/** What takes long is fetched less often: a tab waits at least three times as long as its last page took. */
const REST_FACTOR = 3;

/** The part of the page that changes is fetched as the page itself, and put in place of the old one. */
async function refresh() {
  if (isWaiting) {
    isStale = true;
    return;
  }
  isWaiting = true;
  const began = performance.now();
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const isAway = answer.status === 503;
    if (fresh.title !== document.title && !isAway) {
      location.reload();
      return;
    }
    // While the cluster is away, what was there stays, below a line that says how old it is.
    if (!isBeingRead() && (!isAway || fresh.title === document.title)) replace(fresh);
    document.getElementById("status").replaceWith(fresh.getElementById("status"));
    say(answer.ok ? "live" : "live, with a problem");
  } catch {
    say("the console does not answer");
  }
  setTimeout(rested, REST_FACTOR * (performance.now() - began));
}

function rested() {
  isWaiting = false;
  if (isStale) {
    isStale = false;
    refresh();
  }
}

function say(text) {
  const place = liveState();
  if (place) place.textContent = text;
}

/** Text that somebody is marking must not go away. */
function isBeingRead() {
  const selection = document.getSelection();
  return Boolean(selection && !selection.isCollapsed && live.contains(selection.anchorNode));
}

function replace(fresh) {
  const other = fresh.getElementById("live");
  if (!other || other.innerHTML === live.innerHTML) return;
  const open = new Set([...live.querySelectorAll("details[open][data-keep]")].map((one) => one.dataset.keep));
  for (const one of other.querySelectorAll("details[data-keep]")) one.open = open.has(one.dataset.keep);
  const described = [...live.querySelectorAll("[data-shown]")].map((one) => one.dataset.shown);
  const focused = live.contains(document.activeElement) ? keyOf(document.activeElement) : null;
  const scrolled = [...live.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  live.replaceChildren(...other.childNodes);
  [...live.querySelectorAll(".scroll")].forEach((one, at) => (one.scrollLeft = scrolled[at] ?? 0));
  if (focused) find(focused)?.focus();
  for (const one of described) {
    const bar = find({ name: "data-bar", value: one });
    if (bar) describe(bar);
  }
  sayNews();
}

function keyOf(element) {
  for (const name of ["data-bar", "href", "aria-label"]) {
    const value = element.getAttribute(name);
    if (value) return { name, value };
  }
  const kept = element.closest("details[data-keep]");
  return kept ? { name: "data-keep", value: kept.dataset.keep } : null;
}

function find({ name, value }) {
  const found = live.querySelector(`[${name}="${CSS.escape(value)}"]`);
  return name === "data-keep" ? found?.querySelector("summary") : found;
}

/**
 * Browsers allow six connections to a host, for all tabs together: one tab has a stream and tells the others. The lock
 * decides which one, and passes on to the next when that tab is closed or hidden.
 */
const SHARED = "oncelog-events";
const AGAIN_MS = 5000;

function connect() {
  if (document.body.dataset.live !== "yes" || document.hidden || leave) return;
  if (!navigator.locks || !("BroadcastChannel" in window)) {
    leave = follow(() => {});
    return;
  }
  const channel = new BroadcastChannel(SHARED);
  channel.addEventListener("message", (event) => news(event.data));
  const waiting = new AbortController();
  let end = () => waiting.abort();
  const lead = () =>
    new Promise((release) => {
      const stop = follow((told) => channel.postMessage(told));
      end = () => {
        stop();
        release();
      };
    });
  navigator.locks.request(SHARED, { signal: waiting.signal }, lead).catch((error) => {
    if (error.name !== "AbortError") throw error;
  });
  leave = () => {
    end();
    channel.close();
  };
}

function news(told) {
  number = told;
  refresh();
}

/** Opens a stream, and returns what closes it. Browsers open it again after a lost connection, not after a refusal. */
function follow(tell) {
  let stream, again;
  function open() {
    stream = new EventSource(`/events?after=${number}`);
    stream.addEventListener("poll", (event) => {
      tell(Number(event.lastEventId));
      news(Number(event.lastEventId));
    });
    stream.addEventListener("error", () => {
      say("the console does not answer");
      if (stream.readyState !== EventSource.CLOSED) return;
      // It answers, with a refusal: whoever has logged out elsewhere is shown the form and not what was there before.
      refresh();
      again = setTimeout(open, AGAIN_MS);
    });
  }
  open();
  return () => {
    clearTimeout(again);
    stream.close();
  };
}

function disconnect() {
  leave?.();
  leave = null;
}

document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
addEventListener("pagehide", disconnect);
addEventListener("pageshow", connect);

document.addEventListener("keydown", (event) => {
  // With these keys they belong to the browser: Alt and an arrow go back and forth.
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const isTyping = event.target instanceof HTMLElement && event.target.matches("input, select, textarea");
  if (event.key === "?" && !isTyping) {
    document.getElementById("keys")?.showModal();
  }
  if (event.key === "/" && !isTyping) {
    const search = document.querySelector("[data-search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
  const bar = event.target instanceof Element ? event.target.closest("[data-bar]") : null;
  if (bar && ["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) {
    event.preventDefault();
    move(bar, event.key);
  }
});

function move(bar, key) {
  const bars = [...bar.closest("[data-lane]").querySelectorAll("[data-bar]")];
  const at = bars.indexOf(bar);
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: bars.length - 1 }[key];
  const next = bars[Math.min(Math.max(to, 0), bars.length - 1)];
  bar.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}

/** The place below a lane tells of the bar that has the focus or the pointer. */
const barOf = (event) => (event.target instanceof Element ? event.target.closest("[data-bar]") : null);
const placeOf = (bar) => bar.closest("section").querySelector("[data-detail]");
let tapped = null;

function tell(event) {
  const bar = barOf(event);
  if (bar) describe(bar);
}

function describe(bar) {
  const place = placeOf(bar);
  const text = bar.querySelector("title").textContent.trim().replace(/\s*\n\s*/g, " · ");
  if (place.textContent !== text) place.textContent = text;
  place.dataset.shown = bar.dataset.bar;
}

live.addEventListener("focusin", tell);
live.addEventListener("pointerover", (event) => {
  if (event.pointerType === "mouse") tell(event);
});
// A finger cannot point without pressing: its first tap tells, the second follows the link.
live.addEventListener("pointerdown", (event) => {
  const bar = event.pointerType === "touch" ? barOf(event) : null;
  tapped = bar && placeOf(bar).dataset.shown !== bar.dataset.bar ? bar.dataset.bar : null;
});
live.addEventListener("click", (event) => {
  const bar = barOf(event);
  if (!bar || bar.dataset.bar !== tapped) return;
  tapped = null;
  event.preventDefault();
  describe(bar);
});

/** What is most urgent is said when it changes, and nothing else is. */
let urgent = firstSentence();

function firstSentence() {
  return document.querySelector(".sentences li")?.textContent.replace(/\s+/g, " ").trim();
}

function sayNews() {
  // Durations grow with every poll: they are no news.
  const known = (text) => text?.replace(/ for [\d., a-z]+(?=[.;:])/, "");
  const now = firstSentence();
  if (known(now) !== known(urgent)) document.getElementById("news").textContent = now ?? "";
  urgent = now;
}

connect();
