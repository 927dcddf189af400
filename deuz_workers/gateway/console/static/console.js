"use strict";
// Keeps a page fresh and shows text while it is written. Everything else a page does works without it.

const LIVE = document.querySelector("[data-live]");
const served = new Map(); // what the server said last of each part
const parts = () => new Map([...document.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]));
const live = () => document.querySelector("[data-live]");
const stale = document.getElementById("stale");
let tag = null;

// -- times, in the reader's own words

const relative = new Intl.RelativeTimeFormat(document.documentElement.lang, { numeric: "auto" });
const absolute = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

function tellTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime), seconds = (moment - Date.now()) / 1000, size = Math.abs(seconds);
    const [unit, length] = size < 60 ? ["second", 1] : size < 3600 ? ["minute", 60] : size < 86400 ? ["hour", 3600] : ["day", 86400];
    time.title = absolute.format(moment);
    const words = size > 7 * 86400 ? absolute.format(moment) : relative.format(Math.round(seconds / length), unit);
    if (time.textContent !== words) time.textContent = words;
  }
}

// -- parts of the page, exchanged for what the server says now

function isTouched(part) {
  const at = document.activeElement;
  if (at && part.contains(at) && at.matches("input, select, textarea")) return true;
  return [...part.querySelectorAll("input:not([type=hidden]):not([type=radio]), textarea")].some((field) => field.value !== field.defaultValue);
}

function exchange(part, fresh) {
  const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
  const open = [...part.querySelectorAll("details[open][id]")].map((one) => one.id);
  const scrolls = [...part.querySelectorAll(".scroll, .json")].map((one) => [one.scrollLeft, one.scrollTop]);
  for (const { name, value } of fresh.attributes) if (part.getAttribute(name) !== value) part.setAttribute(name, value);
  part.replaceChildren(...fresh.childNodes);
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  part.querySelectorAll(".scroll, .json").forEach((one, place) => { if (scrolls[place]) one.scrollTo(...scrolls[place]); });
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  tellTimes(part);
}

async function refresh() {
  const answer = await fetch(location.href.split("#")[0], { headers: tag ? { "if-none-match": tag } : {}, cache: "no-store", credentials: "same-origin" });
  if (answer.status === 304) return;
  if (answer.redirected) { say("You are not signed in any more. Load the page again to sign in."); throw new Error("signed out"); }
  if (!answer.ok) { say(answer.status === 404 ? "This is not there any more." : "The page cannot be renewed now; it tries again."); return; }
  tag = answer.headers.get("etag");
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  let isLate = false;
  for (const [name, part] of parts()) {
    const found = fresh.querySelector(`[data-part="${CSS.escape(name)}"]`);
    if (!found || found.outerHTML === served.get(name)) continue;
    if (isTouched(part)) { isLate = true; continue; }
    served.set(name, found.outerHTML);
    exchange(part, found);
  }
  if (isLate) tag = null;
  say(isLate ? "This page has changed meanwhile. What you wrote is kept; load it again to see the change." : "");
  dropSaved();
}

function say(text) {
  if (!stale || stale.textContent === text) return;
  stale.textContent = text;
  stale.hidden = !text;
}

let isRefreshing = false, isWanted = false;

async function renew() {
  if (isRefreshing) { isWanted = true; return; }
  isRefreshing = true;
  try {
    do { isWanted = false; await refresh(); } while (isWanted);
    open();
  } catch (error) {
    if (error.message === "signed out") { close(); clearInterval(polls); } else say("The gateway cannot be reached now; this page tries again.");
  } finally {
    isRefreshing = false;
  }
}

let soon = 0;
function renewSoon() {
  if (soon) return;
  soon = setTimeout(() => { soon = 0; renew(); }, 200);
}

// -- text while it is written

let source = null, last = "";
const texts = new Map(); // turn: the node with its text

function open() {
  const root = live();
  if (source || document.hidden || root?.dataset.live !== "run" || root.dataset.goesOn !== "1") return;
  const address = new URL(root.dataset.stream, location.href);
  if (last) address.searchParams.set("after", last);
  source = new EventSource(address);
  source.onmessage = ({ data, lastEventId }) => {
    if (lastEventId) last = lastEventId;
    if (data === "[DONE]") { close(); renewSoon(); return; }
    take(JSON.parse(data));
  };
  source.onerror = () => { if (source?.readyState === EventSource.CLOSED) close(); };
}

function close() {
  source?.close();
  source = null;
}

function take(part) {
  if (part.type === "text-delta") write(Number(part.id.split("-")[1]), part.delta);
  else if (part.type === "finish-step" || part.type === "start-step") renewSoon();
  else if (part.type === "data-agent") {
    if (part.data.kind === "discard") { texts.get(part.data.step)?.parentElement?.parentElement?.remove(); texts.delete(part.data.step); }
    if (part.data.kind !== "draft") renewSoon();
  }
}

function write(turn, delta) {
  if (document.querySelector(`.turn[data-turn="${turn}"][data-saved]`)) return;
  let text = texts.get(turn);
  if (!text) {
    const block = document.createElement("article"), title = document.createElement("h3"), said = document.createElement("div");
    title.textContent = `Turn ${turn}, being written`;
    said.className = "said";
    said.dir = "auto";
    said.append(text = document.createTextNode(""));
    block.append(title, said);
    document.getElementById("live").append(block);
    texts.set(turn, text);
  }
  text.appendData(delta);
}

function dropSaved() {
  for (const [turn, text] of texts) {
    if (!document.querySelector(`.turn[data-turn="${turn}"][data-saved]`) && live().dataset.over !== "1") continue;
    text.parentElement.parentElement.remove();
    texts.delete(turn);
  }
}

// -- begin

let polls = 0;
for (const [name, part] of parts()) served.set(name, part.outerHTML);
tellTimes(document);
setInterval(() => tellTimes(document), 20_000);
if (LIVE) {
  const pace = Number(LIVE.dataset.poll || 0);
  if (pace) polls = setInterval(() => { if (!document.hidden && live()?.dataset.over !== "1") renew(); }, pace);
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else if (pace) renew(); });
  open();
}
