// The page: a tab for each model, one panel shown at a time, and the watch over the models' states.

import { $, body, complain, request } from "./common.js";
import { reveal } from "./cards.js";
import { Panel } from "./panel.js";

const WATCH_MS = 2000; // while a model is not ready
const CALM_MS = 30000; // while all are
const RENEW_MS = 10000; // at least, between two renewals of a panel or of the page
const STATES = { asleep: " (asleep)", loading: " (loading)", unavailable: " (not available)" };

const tabs = new Map([...document.querySelectorAll("#tabs a")].map((tab) => [tab.dataset.name, tab]));
const addresses = new Map([...tabs].map(([name, { href }]) => [name, href]));
let shown = new Panel($("page"), look);
const panels = new Map([[shown.config.name, shown]]); // those that have been opened
let timer = 0;

// ---- Tabs ------------------------------------------------------------------------------------

/** Returns the name in the address; another one if it names no model. */
const wanted = (other = [...tabs.keys()][0]) => {
  const name = location.hash.slice(1);
  return tabs.has(name) ? name : other;
};

/** Makes tabs of the links, as the ARIA Authoring Practices describe them. */
function makeTabs() {
  const list = $("tabs");
  list.role = "tablist";
  list.ariaLabel = list.parentElement.ariaLabel;
  for (const [name, tab] of tabs) {
    tab.parentElement.role = "presentation";
    tab.role = "tab";
    tab.setAttribute("aria-controls", "page");
    tab.removeAttribute("aria-current");
    tab.href = `#${name}`;
  }
  list.addEventListener("keydown", (event) => {
    const all = [...tabs.values()];
    const place = all.indexOf(event.target);
    const next = {
      ArrowLeft: place - 1, ArrowRight: (place + 1) % all.length, Home: 0, End: -1,
    }[event.key];
    if (next === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    all.at(next).focus();
    location.replace(all.at(next).href);
  });
  addEventListener("hashchange", () => open(wanted()));
}

/** Marks a tab as the one that is open. Scrolled to, the first Tab would go past it. */
function select(name) {
  const list = $("tabs");
  for (const [other, tab] of tabs) {
    tab.ariaSelected = String(other === name);
    tab.tabIndex = other === name ? 0 : -1;
    if (other === name && list.scrollWidth > list.clientWidth) reveal(tab);
  }
}

/** Opens a model's tab. */
async function open(name) {
  select(name);
  shown.element.inert = !panels.has(name); // until there is another one in its place
  try {
    const panel = panels.get(name) ?? await Panel.from(addresses.get(name), look);
    if (!panels.has(name)) panels.set(name, panel);
    if (name !== wanted(name)) return; // another one has been chosen meanwhile
    await show(panels.get(name));
  } catch (problem) {
    if (name !== wanted(name)) return;
    history.replaceState(null, "", `#${shown.config.name}`);
    select(shown.config.name);
    complain(problem);
    await show(shown);
  } finally {
    look();
  }
}

/** Puts a panel into the document, in place of the one that is shown. */
async function show(panel) {
  if (panel !== shown) shown.element.replaceWith(panel.element);
  shown = panel;
  panel.element.hidden = panel.element.inert = false;
  document.title = panel.$("heading").textContent;
  if (tabs.size) {
    panel.element.role = "tabpanel";
    panel.element.setAttribute("aria-labelledby", tabs.get(panel.config.name).id);
  }
  await panel.start();
}

// ---- The models' states: watched until all are ready -----------------------------------------

/** Asks for the states, after so many milliseconds. */
function look(ms = 0) {
  clearTimeout(timer);
  timer = setTimeout(watch, ms);
}

/** Asks the server, shows what it says, and asks again later. */
async function watch() {
  const panel = shown;
  let models = [];
  try {
    const response = await request(`status${panel.config.query}`, {});
    const answer = await body(response);
    const { state = "down", reason, model } = answer;
    models = answer.models ?? [];
    const names = models.map(({ name }) => name);
    if (response.status === 404 || (model && String(names) !== String([...tabs.keys()]))) {
      renewPage();
    }
    if (model && !panel.learn(model)) await renew(panel, model);
    const states = new Map(state === "down" ? [] : models.map((each) => [each.name, each.state]));
    panels.forEach((each, name) => each.show(states.get(name) ?? state, each === panel ? reason : ""));
  } catch {
    panels.forEach((each) => each.show("offline"));
  }
  models.forEach(mark);
  const isCalm = [...panels.values()].every((each) => !each.closed())
    && models.every(({ state }) => state !== "loading")
    && shown.config.view !== "waiting"; // opened while the answer was about another panel
  look(isCalm ? CALM_MS : WATCH_MS);
}

/** Shows a model's state on its tab. */
function mark({ name, state }) {
  const tab = tabs.get(name);
  if (!tab) return;
  tab.dataset.state = state;
  tab.querySelector(".unseen").textContent = STATES[state] ?? "";
}

/** Tells whether something may be renewed again: two servers that disagree would have it loop. */
function mayRenew(what) {
  const last = Number(sessionStorage.getItem(`renewed ${what}`) ?? 0);
  if (Date.now() - last < RENEW_MS) return false;
  sessionStorage.setItem(`renewed ${what}`, Date.now());
  return true;
}

/** Loads the page anew, for other models, once the view has started and has kept what was typed. */
function renewPage() {
  if (mayRenew("page")) shown.start().finally(() => location.reload());
}

/** Replaces a panel that is made for another model; what was typed is kept. */
async function renew(panel, model) {
  const { name } = panel.config;
  if (!mayRenew(`panel ${name}`)) return;
  const fresh = await Panel.from(addresses.get(name) ?? location.href, look);
  fresh.state = panel.state;
  panel.queue?.clear();
  panels.delete(name);
  panels.set(fresh.config.name, fresh);
  if (panel === shown) await show(fresh);
  fresh.learn(model);
}

document.documentElement.classList.add("scripted");
addEventListener("online", () => look());
addEventListener("offline", () => panels.forEach((panel) => panel.show("offline")));
const first = wanted(shown.config.name);
if (tabs.size) {
  makeTabs();
  const root = new URL(".", location);
  if (location.pathname + location.search !== root.pathname) {
    history.replaceState(null, "", `${root.pathname}#${first}`);
  }
}
shown.element.hidden = first !== shown.config.name;
open(first);
